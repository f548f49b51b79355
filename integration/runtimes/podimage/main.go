// Command podimage is all that is in the image of the pods that the runtimes start: static, so that it needs no base.
//
//	podimage pause                 waits until it is instructed to end
//	podimage ask NETWORK NAME...   queries the first nameserver of /etc/resolv.conf for each name's TXT records, one line of JSON each
//	podimage load DURATION NAME... queries the names in turn all that time and prints a Load as JSON
//	podimage resolvconf            prints /etc/resolv.conf
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/miekg/dns"
)

const (
	resolvConf = "/etc/resolv.conf"
	patience   = 10 * time.Second // testutil.Attempt, per query; none is sent twice
)

// Answer is what one query brought.
type Answer struct {
	Name   string        `json:"name"`
	Server string        `json:"server"`
	Who    []string      `json:"who"` // the scripted server's own record: its name, serial and client
	Rcode  string        `json:"rcode"`
	Took   time.Duration `json:"took"`
	Error  string        `json:"error,omitempty"`
}

// Load is what became of a while's queries.
type Load struct {
	Asked int      `json:"asked"`
	Lost  []Lost   `json:"lost,omitempty"`
	Wrong []string `json:"wrong,omitempty"` // answers
}

// Lost is a query without an answer.
type Lost struct {
	Error string    `json:"error"`
	Begun time.Time `json:"begun"`
	Ended time.Time `json:"ended"`
}

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "podimage:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	switch {
	case len(args) == 1 && args[0] == "pause":
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		<-ctx.Done()
		return nil
	case len(args) == 1 && args[0] == "resolvconf":
		text, err := os.ReadFile(resolvConf)
		if err == nil {
			_, err = out.Write(text)
		}
		return err
	case len(args) > 2 && args[0] == "ask":
		server, err := nameserver()
		if err != nil {
			return err
		}
		enc := json.NewEncoder(out)
		for _, name := range args[2:] {
			if err := enc.Encode(ask(args[1], server, name)); err != nil {
				return err
			}
		}
		return nil
	case len(args) > 2 && args[0] == "load":
		server, err := nameserver()
		if err != nil {
			return err
		}
		while, err := time.ParseDuration(args[1])
		if err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(load(server, while, args[2:]))
	}
	return fmt.Errorf("unknown arguments %q", args)
}

func nameserver() (string, error) {
	conf, err := dns.ClientConfigFromFile(resolvConf)
	if err != nil {
		return "", err
	}
	if len(conf.Servers) == 0 {
		return "", errors.New("no nameserver in " + resolvConf)
	}
	return net.JoinHostPort(conf.Servers[0], conf.Port), nil
}

func load(server string, while time.Duration, names []string) Load {
	var l Load
	for until := time.Now().Add(while); time.Now().Before(until); l.Asked++ {
		network := "udp"
		if l.Asked%4 == 3 {
			network = "tcp"
		}
		begun := time.Now()
		switch a := ask(network, server, names[l.Asked%len(names)]); {
		case a.Error != "":
			l.Lost = append(l.Lost, Lost{fmt.Sprintf("%s over %s: %s", a.Name, network, a.Error), begun, time.Now()})
		case a.Rcode != "NOERROR" || len(a.Who) == 0:
			l.Wrong = append(l.Wrong, fmt.Sprintf("%s over %s: %s by %q", a.Name, network, a.Rcode, a.Who))
		}
		<-time.After(5 * time.Millisecond)
	}
	return l
}

func ask(network, server, name string) Answer {
	q := new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeTXT)
	q.SetEdns0(1232, false)
	a := Answer{Name: name, Server: server}
	client := dns.Client{Net: network, Timeout: patience, UDPSize: dns.MinMsgSize}
	start := time.Now()
	m, _, err := client.Exchange(q, server)
	a.Took = time.Since(start)
	if err != nil {
		a.Error = err.Error()
		return a
	}
	a.Rcode = dns.RcodeToString[m.Rcode]
	for _, rr := range m.Extra {
		if txt, ok := rr.(*dns.TXT); ok && strings.HasPrefix(txt.Hdr.Name, "who.") {
			a.Who = txt.Txt
		}
	}
	return a
}
