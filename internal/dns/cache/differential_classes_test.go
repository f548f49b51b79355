package cache_test

import (
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// class is a kind of difference that is meant: DIFFERENCES.md explains each under the same name.
type class struct {
	name     string
	explains func(d difference) bool
}

// contender is the cache that CoreDNS's is compared with.
func contender() subject { return ours() }

// classes is the table: the first class that explains a difference takes it. Each is so narrow that it does not take a difference that
// belongs to none.
func classes() []class {
	return []class{
		{"not kept, as it came", func(d difference) bool {
			return d.ask != nil && d.ours.sameButTTLs(d.theirs) && d.ours.after == d.theirs.after && !d.ours.cached &&
				d.askedOurs == d.askedTheirs && d.unchanged()
		}},
		{"without RD", func(d difference) bool {
			return d.ask != nil && d.withoutRD && d.askedOurs > 0 && !d.ours.cached && (d.theirs.cached || d.theirs.stale())
		}},
		{"neither answer nor denial", func(d difference) bool {
			return d.ask != nil && d.any(saysNothing) && (!d.ours.cached && d.theirs.after < d.ours.after || d.ours.rcode == "SERVFAIL" ||
				!d.ours.cached && d.says("verify") && d.askedOurs > 0 || d.says("prefetch") && d.ours.cached && !d.ours.sameRecords(d.theirs) ||
				d.says("serve_stale") && (d.ours.stale() || d.ours.tc) && !d.ours.sameRecords(d.theirs))
		}},
		{"alias of no name", func(d difference) bool {
			return d.ask != nil && d.any(aliasOfNoName) && (d.ours.rcode == "NXDOMAIN" || d.theirs.rcode == "NXDOMAIN")
		}},
		{"denial's minimum", func(d difference) bool {
			return d.any(lesserMinimum) && d.askedOurs >= d.askedTheirs
		}},
		{"failures end", func(d difference) bool {
			return d.ask != nil && d.says("serve_stale") && isFailure(d.theirs.rcode) && (d.askedOurs > 0 || !d.ours.cached)
		}},
		{"a silent upstream is not waited for", func(d difference) bool {
			return d.ask != nil && d.says("verify") && d.ours.cached && d.ours.stale() && !d.theirs.cached
		}},
		{"a failed prefetch rests a second", func(d difference) bool {
			return d.ask != nil && d.says("prefetch") && d.ours.same(d.theirs) && d.ours.cached && d.askedOurs < d.askedTheirs
		}},
		{"a failed refresh is a failure", func(d difference) bool {
			return d.ask != nil && (d.says("prefetch") || d.says("serve_stale")) && isFailure(d.ours.rcode) && d.ours.cached &&
				(!d.theirs.cached || isFailure(d.theirs.rcode))
		}},
		{"NOTIMP does not hide what is good", func(d difference) bool {
			return d.ask != nil && d.theirs.rcode == "NOTIMP" && d.theirs.cached && d.ours.cached && d.ours.rcode == "NOERROR"
		}},
		{"a denial outlives failures", func(d difference) bool {
			return d.ask != nil && isFailure(d.theirs.rcode) && d.theirs.cached &&
				(d.ours.cached && !isFailure(d.ours.rcode) || !d.ours.cached && d.says("prefetch"))
		}},
		{"a stale denial hides nothing", func(d difference) bool {
			return d.ask != nil && d.says("verify") && d.ours.cached && !d.ours.stale() && d.ours.rcode == "NOERROR" &&
				d.askedOurs <= d.askedTheirs && (d.askedTheirs > 0 || d.theirs.stale())
		}},
		{"what was denied does not come back", func(d difference) bool {
			return d.ask != nil && d.theirs.cached && d.theirs.rcode == "NOERROR" && d.any(func(r *rule) bool { return soaOf(r) != nil }) &&
				(!d.ours.cached && d.askedOurs > 0 || d.ours.cached && d.says("prefetch") && !d.ours.sameRecords(d.theirs))
		}},
		{"a silent upstream gets one query in 100 ms", func(d difference) bool {
			return d.ask != nil && d.says("serve_stale") && d.ours.cached && d.askedOurs == 0 && d.askedTheirs == 1 && d.ours.same(d.theirs)
		}},
		{"owner in another case", func(d difference) bool {
			return d.ask != nil && d.theirs.tc && !d.ours.tc && !d.ask.tcp && d.inUpperCase
		}},
		{"the upstream is heard again", func(d difference) bool {
			return d.ask != nil && d.says("serve_stale") && d.askedOurs == 1 && d.askedTheirs == 0 &&
				(d.ours.cached && d.ours.same(d.theirs) || d.says("verify") && !d.ours.cached && d.theirs.cached && d.theirs.stale())
		}},
		{"one query at a time", func(d difference) bool {
			return d.ask != nil && d.askedOurs < d.askedTheirs && !d.ours.cached && (d.askedOurs == 0 || d.ours.after <= d.theirs.after && d.ours.sameButTTLs(d.theirs))
		}},
	}
}

func (d difference) says(word string) bool { return strings.Contains(d.block, word) }

// any reports whether is holds for any of the upstream's rules about the name.
func (d difference) any(is func(r *rule) bool) bool { return slices.ContainsFunc(d.rules, is) }

// unchanged reports whether our answer has the TTLs that the upstream has given.
func (d difference) unchanged() bool {
	if d.rule == nil || d.rule.reply == nil {
		return false
	}
	for _, rec := range d.rule.reply.records {
		if !slices.Contains(values(d.ours.ttls), int(rec.low)) && !rec.signed {
			return false
		}
	}
	return true
}

func values(m map[string]int) (v []int) {
	for _, n := range m {
		v = append(v, n)
	}
	return v
}

func isFailure(rcode string) bool { return rcode == "SERVFAIL" || rcode == "NOTIMP" }

// soaOf is the SOA of a denial; nil: there is none.
func soaOf(r *rule) *dns.SOA {
	if r.reply == nil {
		return nil
	}
	for _, rec := range r.reply.records {
		if soa, ok := rec.rr("example.").(*dns.SOA); ok && rec.section == 1 {
			return soa
		}
	}
	return nil
}

func lesserMinimum(r *rule) bool {
	soa := soaOf(r)
	return soa != nil && soa.Minttl < soa.Hdr.Ttl
}

// saysNothing reports whether a rule's reply is neither an answer nor, for want of an SOA, a denial.
func saysNothing(r *rule) bool {
	if r.reply == nil || r.reply.rcode != dns.RcodeSuccess && r.reply.rcode != dns.RcodeNameError || soaOf(r) != nil {
		return false
	}
	answers := 0
	for _, rec := range r.reply.records {
		if rec.section == 0 && (r.qtype == dns.TypeANY || rec.rr("example.").Header().Rrtype == r.qtype) {
			answers++
		}
	}
	return answers == 0 || r.qtype == dns.TypeCNAME && answers > 1 // RFC 2181, section 10.1: an alias has one canonical name
}

func aliasOfNoName(r *rule) bool {
	return r.reply != nil && r.reply.rcode == dns.RcodeNameError && len(r.reply.records) > 1
}

// stale reports whether all TTLs of the answer are 30 s, the TTL of stale answers in all blocks of the trials.
func (a answer) stale() bool {
	return len(a.ttls) > 0 && !slices.ContainsFunc(values(a.ttls), func(ttl int) bool { return ttl != 30 })
}
