package goleak

import "testing"

func Find() error               { return nil }
func VerifyNone(*testing.T)     {}
func VerifyTestMain(*testing.M) {}
