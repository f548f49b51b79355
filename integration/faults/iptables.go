package main

// byIptables gives the faults their limits with iptables' rules, where they are others: a lease lasts whole seconds there, so a
// hang costs what is queried within one and what it takes to see it. What is promised is issue 5's: of 12,000 queries over UDP and
// TCP together a hang costs 1,500 at most, a kill 50, and SIGTERM and start none.
func byIptables(all []fault) []fault {
	hang := limit{lost: 1250, tcp: 250}
	for i := range all {
		f := &all[i]
		switch f.name {
		case "sigterm-restart":
			f.promised = true
		case "kill":
			f.limit, f.promised = limit{lost: 40, tcp: 10}, true
		case "sigstop":
			f.limit, f.promised = hang, true
		case "sigstop-old", "sigstop-new":
			f.limit = hang
		}
	}
	return all
}
