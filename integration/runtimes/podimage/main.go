// Command podimage is all that is in the image of the pods that the runtimes start: static, so that it needs no base.
//
//	podimage pause                 waits until it is told to end
//	podimage ask NETWORK NAME...   asks the first nameserver of /etc/resolv.conf for each name's TXT records, one line of JSON each
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
	patience   = 3 * time.Second // per question, with nothing asked twice
)

// Answer is what one question brought.
type Answer struct {
	Name   string        `json:"name"`
	Server string        `json:"server"`
	Who    []string      `json:"who"` // the scripted server's own record: its name, serial and client
	Rcode  string        `json:"rcode"`
	Took   time.Duration `json:"took"`
	Error  string        `json:"error,omitempty"`
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
		conf, err := dns.ClientConfigFromFile(resolvConf)
		if err != nil {
			return err
		}
		if len(conf.Servers) == 0 {
			return errors.New("no nameserver in " + resolvConf)
		}
		enc := json.NewEncoder(out)
		for _, name := range args[2:] {
			if err := enc.Encode(ask(args[1], net.JoinHostPort(conf.Servers[0], conf.Port), name)); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("unknown arguments %q", args)
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
