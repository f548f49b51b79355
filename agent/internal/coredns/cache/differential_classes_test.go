package cache_test

// class is a kind of difference that is meant: README.md tells each to people, by the same name.
type class struct {
	name     string
	explains func(d difference) bool
}

// contender is the cache that CoreDNS's is compared with.
func contender() subject { return stock() }

// classes is the table; the first that explains a difference takes it.
func classes() []class { return nil }
