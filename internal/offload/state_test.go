package offload

import (
	"testing"

	"github.com/neardns/neardns/internal/dns/cache/answers"
	"github.com/neardns/neardns/internal/dns/msg"
	"github.com/neardns/neardns/internal/offload/entries"
	"github.com/neardns/neardns/internal/telemetry"
	"github.com/neardns/neardns/pkg/testutil"
)

// TestSeries: hits are counted by the entry's record type and response code.
func TestSeries(t *testing.T) {
	for _, c := range []struct {
		kind  uint16
		rcode byte
		want  telemetry.KernelSeries
	}{
		{1, 0, telemetry.KernelSeries{Type: "A", Rcode: "NOERROR"}},
		{28, 0, telemetry.KernelSeries{Type: "AAAA", Rcode: "NOERROR"}},
		{16, 0, telemetry.KernelSeries{Type: "other", Rcode: "NOERROR"}},
		{1, 3, telemetry.KernelSeries{Type: "A", Rcode: "NXDOMAIN"}},
		{257, 3, telemetry.KernelSeries{Type: "other", Rcode: "NXDOMAIN"}},
	} {
		question, err := msg.AppendQuestion(nil, "web.shop.svc.cluster.local.", c.kind, 1)
		testutil.Must(t, err)
		key := new(msg.Key)
		key.Set(question, false, false)
		message := append([]byte{0, 0, 0x80, 0x80 | c.rcode, 0, 1, 0, 0, 0, 0, 0, 0}, question...)
		entry, err := answers.NewEntry(key, answers.Denial, message, 30)
		testutil.Must(t, err)
		testutil.Equal(t, c.want.Type+" "+c.want.Rcode, c.want, series[seriesOf(entries.Item{Key: key, Entry: entry})])
	}
}
