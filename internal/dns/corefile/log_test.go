package corefile

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestLogLines(t *testing.T) {
	for _, tc := range []struct{ line, want string }{
		{`{"level":"INFO","msg":"[INFO] Reloading"}`, "level=DEBUG msg=coredns text=Reloading"},
		{`{"level":"INFO","msg":"[ERROR] Restart failed: no"}`, `level=ERROR msg=coredns text="Restart failed: no"`},
		{`{"level":"INFO","msg":"[WARNING] No files matching import glob pattern: x"}`,
			`level=WARN msg=coredns text="No files matching import glob pattern: x"`},
		{`{"level":"INFO","msg":"a foreign line"}`, `level=INFO msg=coredns text="a foreign line"`},
		{`{"level":"ERROR","msg":"2 a. A: i/o timeout","plugin":"errors"}`, `level=WARN msg=coredns text="2 a. A: i/o timeout" plugin=errors`},
		{`{"level":"ERROR","msg":"x","plugin":"forward"}`, `level=ERROR msg=coredns text=x plugin=forward`},
		{`{"level":"FATAL","msg":"x"}`, `level=ERROR msg=coredns text=x`},
		{`{"level":"INFO","msg":"10.0.0.1:4000 ...","plugin":"log","client_ip":"10.0.0.1","qname":"a.","qtype":"A",` +
			`"protocol":"udp","rcode":"NOERROR","response_size":45,"duration_seconds":0.001}`,
			`level=INFO msg=query client=10.0.0.1 name=a. type=A protocol=udp rcode=NOERROR size=45 seconds=0.001`},
		{"not JSON", `level=WARN msg=coredns text="not JSON"`},
	} {
		out := new(bytes.Buffer)
		log := slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug}))
		l := new(lines)
		l.log.Store(log)
		if n, err := l.Write([]byte(tc.line + "\n")); err != nil || n != len(tc.line)+1 {
			t.Errorf("%s: wrote %d, %v", tc.line, n, err)
		}
		if !strings.Contains(out.String(), tc.want) {
			t.Errorf("%s\nbecame %swant   %s", tc.line, out, tc.want)
		}
	}
}
