package node

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Verbs of the program that calls Inside: it calls itself by them.
const (
	initVerb      = "init"
	superviseVerb = "supervise"
)

// plan is what the outer process passes to the inner one, in Dir/plan.json.
type plan struct {
	Bin      string
	Token    string
	Programs []program
}

// Inside is this package's part in the node's own namespaces, for a program that was called by one of its own verbs; ran tells
// whether it was.
func Inside(args []string) (ran bool, err error) {
	if len(args) != 2 {
		return false, nil
	}
	switch args[1] {
	case initVerb:
		return true, initialize()
	case superviseVerb:
		return true, supervise()
	}
	return false, nil
}

func readPlan() (p plan, err error) {
	text, err := os.ReadFile(path("plan.json"))
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	return p, err
}

// initialize is process 1: it builds mounts and links, starts the one that does the work, and takes in the orphans, such as
// the runtime's shims leave. It ends with that one or at a SIGTERM, and all others with it.
func initialize() error {
	p, err := readPlan()
	if err != nil {
		return err
	}
	if err := makeMounts(p.Bin); err != nil {
		return err
	}
	if err := makeLinks(); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(Name)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, unix.SIGTERM)
	worker := exec.Command("/proc/self/exe", superviseVerb)
	worker.Stdout, worker.Stderr = os.Stdout, os.Stderr
	worker.ExtraFiles = []*os.File{os.NewFile(listenerFD, "listener")}
	if err := worker.Start(); err != nil {
		return fmt.Errorf("start the supervisor: %w", err)
	}
	go func() {
		<-asked
		os.Exit(0)
	}()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait for processes: %w", err)
		case pid == worker.Process.Pid:
			return fmt.Errorf("the supervisor ended: status %d", status)
		}
	}
}

// supervise starts the programs in their order and keeps each of them running. It also carries connections from the machine's
// loopback to the API server.
func supervise() error {
	p, err := readPlan()
	if err != nil {
		return err
	}
	l, err := net.FileListener(os.NewFile(listenerFD, "listener"))
	if err != nil {
		return fmt.Errorf("take the listener: %w", err)
	}
	// The client verifies the API server by its certificate; this one only wants to know whether it is up.
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	var wg sync.WaitGroup
	for _, one := range p.Programs {
		wg.Go(func() {
			for one.answers(client, p.Token) != nil {
				pause()
			}
			for {
				err := one.run()
				_, _ = fmt.Fprintf(os.Stdout, "%s %s ended: %v\n", time.Now().Format(time.TimeOnly), one.Name, err)
				pause()
			}
		})
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		go carry(conn)
	}
}

// pause keeps what is tried again from being tried all the time.
func pause() {
	time.Sleep(200 * time.Millisecond) //nolint:forbidigo // another process's readiness: no event reports it
}

// answers reports whether what the program needs is there.
func (p program) answers(client *http.Client, token string) error {
	switch {
	case p.Await == "":
		return nil
	case strings.HasPrefix(p.Await, "tcp://"):
		conn, err := net.DialTimeout("tcp", strings.TrimPrefix(p.Await, "tcp://"), time.Second)
		if err == nil {
			err = conn.Close()
		}
		return err
	}
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, p.Await, nil)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}

// run starts the program and waits for its end.
func (p program) run() error {
	log, err := os.OpenFile(path("log", p.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	args := p.Args
	if p.Outside {
		args = append([]string{"nsenter", "--net=" + outsideNS()}, args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "PATH="+p.Path+":"+os.Getenv("PATH"))
	// All programs end with this one, and it with the namespaces.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd.Run()
}

// carry copies both ways until either side ends.
func carry(conn net.Conn) {
	defer conn.Close()
	api, err := net.Dial("tcp", apiAddr)
	if err != nil {
		return // the client sees its connection end
	}
	defer api.Close()
	done := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{conn, api}, {api, conn}} {
		go func() {
			_, _ = io.Copy(way[0], way[1])
			done <- struct{}{}
		}()
	}
	<-done
}
