package a

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/neardns/neardns/pkg/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) } // want `a TestMain has a time of its own by VerifyTestMain: use testutil.NoLeaks`

func TestLeaks(t *testing.T) { goleak.VerifyNone(t) } // want `unit test a TestLeaks reads the real clock by VerifyNone`

func TestFound(t *testing.T) { _ = goleak.Find() } // want `unit test a TestFound reads the real clock by Find`

func TestDeadline(t *testing.T) { // want `unit test a TestDeadline reads the real clock by a tight deadline`
	_ = net.Dialer{Timeout: 10 * time.Second}
}

func TestKernelFinds(t *testing.T) {
	testutil.NewNS()
	testutil.Eventually(goleak.Find)
}

func TestPure(t *testing.T) { _ = time.Unix(0, 0).Add(time.Second) }

func TestVirtual(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { pause(); time.Sleep(time.Second) })
}

func TestVirtualByName(t *testing.T) { synctest.Test(t, bubble) }

func bubble(t *testing.T) { pause() }

func pause() { time.Sleep(time.Hour) }

func TestReal(t *testing.T) { // want `unit test a TestReal reads the real clock by pause → Sleep`
	synctest.Test(t, bubble)
	pause()
}

func TestValue(t *testing.T) { // want `unit test a TestValue reads the real clock by wait → pause → Sleep`
	wait()
}

var wait = pause

type rig struct{}

func (rig) ask() { _ = time.Now() }

func TestMethod(t *testing.T) { rig{}.ask() } // want `unit test a TestMethod reads the real clock by ask → Now`

func TestWaits(t *testing.T) { // want `unit test a TestWaits waits on the real clock by Eventually`
	testutil.Eventually(func() error { return nil })
}

func FuzzReal(f *testing.F) { // want `unit test a FuzzReal reads the real clock by Now`
	f.Fuzz(func(t *testing.T, in string) { _ = time.Now() })
}

func BenchmarkReal(b *testing.B) { _ = time.Now() }

func TestKernel(t *testing.T) {
	testutil.NewNS()
	testutil.Eventually(func() error { return nil })
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience())
	defer cancel()
	unanswered, cancel := context.WithTimeout(ctx, testutil.Silence)
	defer cancel()
	_, _ = unanswered, time.Now().Add(testutil.Patience())
}

func TestKernelBound(t *testing.T) { // want `kernel test a TestKernelBound has a time of its own by Since`
	testutil.RequireRoot()
	if begun := time.Now(); time.Since(begun) > time.Second {
		t.Error("late")
	}
}

func TestKernelLimit(t *testing.T) { // want `kernel test a TestKernelLimit has a time of its own by limit → WithTimeout`
	namespace()
	limit()
}

func TestKernelDeadline(t *testing.T) { // want `kernel test a TestKernelDeadline has a time of its own by a tight deadline`
	testutil.RequireRoot()
	(&net.UDPConn{}).SetReadDeadline(time.Now().Add(tight))
}

const tight = time.Second

func TestKernelDial(t *testing.T) { // want `kernel test a TestKernelDial has a time of its own by a tight deadline`
	testutil.RequireRoot()
	_, _ = net.DialTimeout("udp", "", 2*time.Second)
}

func TestKernelTimeout(t *testing.T) { // want `kernel test a TestKernelTimeout has a time of its own by a tight deadline`
	testutil.RequireRoot()
	_ = net.Dialer{Timeout: 3 * time.Second}
}

func TestKernelPatient(t *testing.T) {
	testutil.RequireRoot()
	_ = net.Dialer{Timeout: testutil.Silence}
	_, _ = net.DialTimeout("udp", "", testutil.Patience())
	(&net.UDPConn{}).SetReadDeadline(time.Now().Add(time.Second / 4)) // one attempt of many
	_, _ = product{Timeout: time.Minute}, net.Dialer{Timeout: time.Hour}
}

type product struct{ Timeout time.Duration }

func namespace() { testutil.NewNS() }

func limit() { _, _ = context.WithTimeout(context.Background(), time.Second) }

func TestTimingMisplaced(t *testing.T) {} // want `TestTimingMisplaced: a test of the timing tier is called TestTiming…, and no other is`
