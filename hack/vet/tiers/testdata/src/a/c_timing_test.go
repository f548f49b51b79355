package a // want `a file has the build tag timing if and only if its name ends in _timing_test.go`
