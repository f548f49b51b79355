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
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Verbs of the program that calls Inside: it calls itself by them.
const (
	initVerb      = "init"
	superviseVerb = "supervise"
)

// plan is what the outer process passes to a node's inner ones, in its plan.json.
type plan struct {
	Bin      string
	Token    string
	Programs []program
}

// Inside is this package's part in the node's own namespaces, for a program that was called by one of its own verbs; ran reports
// whether it was.
func Inside(args []string) (ran bool, err error) {
	if len(args) != 3 || args[1] != initVerb && args[1] != superviseVerb {
		return false, nil
	}
	number, err := strconv.Atoi(args[2])
	switch {
	case err != nil:
		return true, fmt.Errorf("the node's number: %w", err)
	case args[1] == initVerb:
		return true, host(number).initialize()
	}
	return true, host(number).supervise()
}

func (h host) readPlan() (p plan, err error) {
	text, err := os.ReadFile(h.path("plan.json"))
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	return p, err
}

// initialize is process 1: it builds mounts and links, starts the one that does the work, and takes in the orphans, such as
// the runtime's shims leave. It ends with that one or at a SIGTERM, and all others with it.
func (h host) initialize() error {
	p, err := h.readPlan()
	if err != nil {
		return err
	}
	if err := h.makeMounts(p.Bin); err != nil {
		return err
	}
	outside := netns.NsHandle(inheritedFD)
	if h == 0 {
		if outside, err = makeOutside(); err != nil {
			return err
		}
	}
	if err := h.makeLinks(outside); err != nil {
		return err
	}
	if err := outside.Close(); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(h.name())); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, unix.SIGTERM)
	worker := exec.Command("/proc/self/exe", superviseVerb, strconv.Itoa(int(h)))
	worker.Stdout, worker.Stderr = os.Stdout, os.Stderr
	if h == 0 {
		worker.ExtraFiles = []*os.File{os.NewFile(inheritedFD, "listener")}
	}
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

// supervise starts the programs in their order and keeps each of them running. The first node's also carries connections from the
// machine's loopback to the API server.
func (h host) supervise() error {
	p, err := h.readPlan()
	if err != nil {
		return err
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
				err := one.run(h.path("log", one.Name+".log"))
				_, _ = fmt.Fprintf(os.Stdout, "%s %s ended: %v\n", time.Now().Format(time.TimeOnly), one.Name, err)
				pause()
			}
		})
	}
	if h != 0 {
		wg.Wait() // for ever
	}
	l, err := net.FileListener(os.NewFile(inheritedFD, "listener"))
	if err != nil {
		return fmt.Errorf("take the listener: %w", err)
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

// run starts the program, with its output appended to a file, and waits for its end.
func (p program) run(output string) error {
	log, err := os.OpenFile(output, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
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
