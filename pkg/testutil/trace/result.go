package trace

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/neardns/neardns/pkg/steer"
)

// result passes the packet through its place and returns its fate in words.
func (r *run) result(p Packet) (string, error) {
	hooks, err := r.hooks()
	if err != nil {
		return "", err
	}
	was, before := p, r.noted(p)
	for _, h := range hooks {
		if err := r.rules.Pass(h, &p, r.world); err != nil {
			return "", err
		}
		if p.Dropped {
			break
		}
	}
	words := strings.Join(r.goes(was, p), ", ")
	var counted, evidence []string
	for _, name := range p.Counted {
		if strings.HasPrefix(name, "heard") {
			evidence = append(evidence, name)
		} else {
			counted = append(counted, name)
		}
	}
	after := r.noted(was)
	for _, set := range slices.Sorted(maps.Keys(after)) {
		if !before[set] {
			evidence = append(evidence, "+"+set)
		}
	}
	for _, set := range slices.Sorted(maps.Keys(before)) {
		if !after[set] {
			evidence = append(evidence, "-"+set)
		}
	}
	if len(counted) > 0 {
		words += "; " + strings.Join(counted, " ")
	}
	if len(evidence) > 0 {
		words += " [" + strings.Join(evidence, " ") + "]"
	}
	return words, nil
}

// goes describes in words where a packet went.
func (r *run) goes(was, p Packet) []string {
	if p.Dropped {
		return []string{"dropped"}
	}
	var out []string
	say := func(when bool, words string) {
		if when {
			out = append(out, words)
		}
	}
	tracked := "" // the rule, so not worth a word, is that no entry is made
	if !p.Untracked {
		tracked = " tracked"
	}
	a := r.c.Arrangement
	// Behind these two hooks the kernel routes the packet: one with our address goes to the program that is bound there.
	isQuery := p.DstPort == 53 && (r.c.Place == string(Prerouting) || r.c.Place == string(Output))
	reaches := isQuery && a.ours(p.Dst) && !p.Translated
	listens := cmp.Or(p.Socket.Owner, "closed") + tracked
	switch {
	case p.Dst != was.Dst && reaches:
		out = append(out, listens+" at "+r.word(p.Dst))
	case p.Dst != was.Dst && p.Dst == r.words["cluster"] && !r.c.OfPod(), p.Dst != was.Dst && p.Dst == r.words["second"]:
		say(p.Dst == r.words["cluster"], "kube-dns")
		say(p.Dst == r.words["second"], "kube-dns by second")
		say(p.Untracked, "untracked") // then kube-proxy never sees it
	case p.Dst != was.Dst:
		out = append(out, "to "+r.word(p.Dst))
	case reaches:
		out = append(out, listens)
	default:
		say(p.Translated && a.ours(p.Dst), "kube-proxy")
		say(p.Untracked, "untracked")
	}
	say(p.Src != was.Src, "from "+r.word(p.Src))
	say(p.SourceNAT != "", p.SourceNAT)
	say(r.c.Place == string(Postrouting) && p.Settled && p.SourceNAT == "", "kept as it is")
	say(p.Accepted, "accepted")
	say(p.Mark != was.Mark && p.Mark == 0, "unmarked")
	say(p.Mark != was.Mark && p.Mark == steer.OwnMark, "marked for the turn")
	say(p.Mark != was.Mark && p.Mark == steer.AnswerMark, "marked as the turn's")
	say(p.Conn != nil && p.New && p.Conn.Mark != 0, "connection marked")
	if len(out) == 0 {
		out = []string{"untouched"}
	}
	return out
}

func (r *run) word(a netip.Addr) string {
	for _, word := range slices.Sorted(maps.Keys(r.words)) {
		if r.words[word] == a {
			return word
		}
	}
	return a.String()
}
