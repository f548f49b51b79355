package trace

import (
	"strings"
	"testing"

	"github.com/neardns/neardns/pkg/steer"
	"github.com/neardns/neardns/pkg/testutil"
)

// A list that cannot be right is an error with its line, so that no row is silently skipped.
func TestParse(t *testing.T) {
	local := func(result string) string { return "| output | udp | node | local | | | | " + result + " |" }
	row := func(cells string) string {
		return "## steered\n\n| " + strings.Join(columns, " | ") + " |\n" + cells + "\n"
	}
	for name, c := range map[string]struct{ text, want string }{
		"no such arrangement": {"## steered by hand\n", `:1: no arrangement is called "steered by hand"`},
		"a column less":       {row("| prerouting | udp | pod | local | | | | agent | = |"), ":4: 9 columns"},
		"no result":           {row(local(" | = | ")), "no result"},
		"no reason":           {row(local("agent | closed | ")), "no reason why iptables differs"},
		"no reason for none":  {row(local("agent | - | ")), "no reason why iptables has no such case"},
		"the same in words":   {row(local("agent; x [+asked] | agent; x | so")), "write ="},
		"not for iptables":    {strings.Replace(row(local("agent | = | ")), "steered", "node interception", 1), "write -"},
		"twice":               {row(local("agent | = | ") + "\n" + local("closed | = | ")), "stands in line 4"},
	} {
		_, err := parse(c.text)
		testutil.WantError(t, err, c.want, name)
	}
}

// empty is rules that do nothing.
type empty struct{}

func (empty) Keys() []string                            { return nil }
func (empty) Start(string) Rules                        { return empty{} }
func (empty) Pass(Hook, *Packet, *World) error          { return nil }
func (empty) Noted(steer.Client, *World) (out []string) { return nil }

// An unknown word is an error that names it.
func TestUnknownWords(t *testing.T) {
	good := Case{Arrangement: Arrangements()[0], Place: "prerouting", Packet: "udp", From: "pod", To: "local"}
	_, err := good.Run(empty{}, "", true)
	testutil.Must(t, err)
	for word, spoil := range map[string]func(*Case){
		"ingress":  func(c *Case) { c.Place = "ingress" },
		"icmp":     func(c *Case) { c.Packet = "icmp" },
		"somebody": func(c *Case) { c.From = "somebody" },
		"nowhere":  func(c *Case) { c.To = "nowhere" },
		"pod7":     func(c *Case) { c.From = "pod by pod7" },
		"lost":     func(c *Case) { c.Lease = "lost" },
		"broken":   func(c *Case) { c.Socket = "broken" },
		"laughed":  func(c *Case) { c.Before = "3s; laughed" },
	} {
		c := good
		spoil(&c)
		_, err := c.Run(empty{}, "", true)
		testutil.WantError(t, err, word)
	}
}
