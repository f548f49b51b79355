package searchpath

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// client sends one query and returns the answer.
type client func(name string, qtype uint16) *dns.Msg

// outcomeOf is the result of a lookup that a program gets from its libc.
type outcomeOf struct {
	addrs []netip.Addr // sorted
	err   string
}

// libc is a resolver as far as its walk goes: which queries it sends for a name, and what it makes of the answers. They are written from
// the libraries' sources and are checked against the libraries themselves in integration/completion.
type libc func(name string, list []string, ndots int, qtypes []uint16, send client) outcomeOf

func libcs() map[string]libc {
	return map[string]libc{"glibc": glibc, "musl": musl, "musl before 1.2.3": oldMusl, "go": goResolver}
}

func all(qtypes []uint16, name string, send client) []*dns.Msg {
	var out []*dns.Msg
	for _, t := range qtypes {
		out = append(out, send(name, t))
	}
	return out
}

func addresses(answers []*dns.Msg) []netip.Addr {
	var out []netip.Addr
	for _, m := range answers {
		if m.Rcode != dns.RcodeSuccess {
			continue
		}
		for _, rr := range m.Answer {
			switch a := rr.(type) {
			case *dns.A:
				addr, _ := netip.AddrFromSlice(a.A.To4())
				out = append(out, addr)
			case *dns.AAAA:
				addr, _ := netip.AddrFromSlice(a.AAAA)
				out = append(out, addr)
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// glibc 2.36: resolv/res_query.c, __res_context_query and __res_context_search.
func glibc(name string, list []string, ndots int, qtypes []uint16, send client) outcomeOf {
	query := func(question string) (ok bool, herrno string, rcode int, answers []*dns.Msg) {
		answers = all(qtypes, question, send)
		for _, m := range answers {
			if m.Rcode == dns.RcodeSuccess && len(m.Answer) > 0 {
				return true, "", 0, answers
			}
		}
		rcode = answers[0].Rcode
		if rcode == dns.RcodeSuccess && len(answers) > 1 {
			rcode = answers[1].Rcode
		}
		switch rcode {
		case dns.RcodeNameError:
			return false, "not found", rcode, answers
		case dns.RcodeServerFailure:
			return false, "try again", rcode, answers
		case dns.RcodeSuccess:
			return false, "no data", rcode, answers
		}
		return false, "no recovery", rcode, answers
	}
	end := func(answers []*dns.Msg) outcomeOf {
		if addrs := addresses(answers); len(addrs) > 0 {
			return outcomeOf{addrs: addrs}
		}
		return outcomeOf{err: "no data"}
	}
	dots := strings.Count(name, ".")
	saved, tried, noData, failed := "", false, false, false
	if dots >= ndots {
		ok, herrno, _, answers := query(name + ".")
		if ok {
			return end(answers)
		}
		saved, tried = herrno, true
	}
	root := false
search:
	for _, suffix := range list {
		root = root || suffix == "."
		ok, herrno, rcode, answers := query(join(name, suffix))
		if ok {
			return end(answers)
		}
		switch herrno {
		case "no data":
			noData = true
		case "not found":
		case "try again":
			if rcode != dns.RcodeServerFailure {
				break search
			}
			failed = true
		default:
			break search
		}
	}
	last := saved
	if !tried && !root {
		ok, herrno, _, answers := query(name + ".")
		if ok {
			return end(answers)
		}
		last = herrno
	}
	switch {
	case saved != "":
		return outcomeOf{err: saved}
	case noData:
		return outcomeOf{err: "no data"}
	case failed:
		return outcomeOf{err: "try again"}
	}
	return outcomeOf{err: last}
}

// musl 1.2.3: src/network/lookup_name.c, name_from_dns and name_from_dns_search.
func musl(name string, list []string, ndots int, qtypes []uint16, send client) outcomeOf {
	return muslWalk(name, list, ndots, qtypes, send, func(answers []*dns.Msg) string {
		for _, m := range answers {
			switch m.Rcode {
			case dns.RcodeSuccess:
			case dns.RcodeServerFailure:
				return "try again"
			case dns.RcodeNameError:
				return "go on"
			default:
				return "fail"
			}
		}
		if len(addresses(answers)) == 0 {
			return "no data"
		}
		return ""
	})
}

// Before 1.2.3 the first answer alone gave the reason why there was no address.
func oldMusl(name string, list []string, ndots int, qtypes []uint16, send client) outcomeOf {
	return muslWalk(name, list, ndots, qtypes, send, func(answers []*dns.Msg) string {
		if len(addresses(answers)) > 0 {
			return ""
		}
		switch answers[0].Rcode {
		case dns.RcodeServerFailure:
			return "try again"
		case dns.RcodeSuccess:
			return "no data"
		case dns.RcodeNameError:
			return "go on"
		}
		return "fail"
	})
}

func muslWalk(name string, list []string, ndots int, qtypes []uint16, send client, judge func([]*dns.Msg) string) outcomeOf {
	questions := []string{name + "."}
	if strings.Count(name, ".") < ndots {
		questions = nil
		for _, suffix := range list {
			if suffix != "." { // it takes it for an empty label and leaves it out
				questions = append(questions, join(name, suffix))
			}
		}
		questions = append(questions, name+".")
	}
	for _, question := range questions {
		answers := all(qtypes, question, send)
		switch verdict := judge(answers); verdict {
		case "":
			return outcomeOf{addrs: addresses(answers)}
		case "go on":
		default:
			return outcomeOf{err: verdict}
		}
	}
	return outcomeOf{err: "not found"}
}

// Go 1.25: net/dnsclient_unix.go, goLookupIPCNAMEOrder and nameList.
func goResolver(name string, list []string, ndots int, qtypes []uint16, send client) outcomeOf {
	var questions []string
	rooted := strings.Count(name, ".") >= ndots
	if rooted {
		questions = append(questions, name+".")
	}
	for _, suffix := range list {
		questions = append(questions, join(name, suffix))
	}
	if !rooted {
		questions = append(questions, name+".")
	}
	var first string
	for _, question := range questions {
		answers := all(qtypes, question, send)
		if addrs := addresses(answers); len(addrs) > 0 {
			return outcomeOf{addrs: addrs}
		}
		for _, m := range answers {
			err := "not found"
			if m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError {
				err = "misbehaving"
			}
			// The first name's error is reported, or the last one's: both are kept here.
			if first == "" || err == "misbehaving" && first == "not found" {
				first = err
			}
		}
	}
	return outcomeOf{err: first}
}
