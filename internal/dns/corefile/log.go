package corefile

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync/atomic"

	clog "github.com/coredns/coredns/plugin/pkg/log"
)

// lines is the writer to which CoreDNS logs. CoreDNS writes one JSON object per line, and each becomes a record of the agent's logger.
// CoreDNS and the standard library have one log per process, so there is one lines; it has the logger of the server that last started or
// reloaded, also after that server has ended.
//
// The logger must not write to the standard library's log package, as slog's default does: its lines would come here again.
type lines struct{ log atomic.Pointer[slog.Logger] }

// bridge sends CoreDNS's log to log. It is called after Builder.enter.
func bridge(log *slog.Logger) {
	process.output.log.Store(log)
	// It fails only for an unknown format or without a writer.
	_ = clog.Configure("json", &process.output)
}

// Write implements io.Writer. It never fails, because no caller could handle an error.
func (l *lines) Write(p []byte) (int, error) {
	for line := range bytes.Lines(p) {
		if line = bytes.TrimSpace(line); len(line) > 0 {
			emit(l.log.Load(), line)
		}
	}
	return len(p), nil
}

// emit logs one of CoreDNS's lines, with its text, or its query's fields, as attributes. It keeps the level, but errors of single queries
// become warnings, and caddy's lines get the level that caddyLevel returns.
func emit(log *slog.Logger, line []byte) {
	var record struct {
		Level  string `json:"level"`
		Msg    string `json:"msg"`
		Plugin string `json:"plugin"`
	}
	if err := json.Unmarshal(line, &record); err != nil {
		log.Warn("coredns", "text", string(line))
		return
	}
	level, text := slog.LevelInfo, strings.TrimSpace(record.Msg)
	if err := level.UnmarshalText([]byte(record.Level)); err != nil {
		level = slog.LevelError // CoreDNS's FATAL, which slog does not have
	}
	attrs := []slog.Attr{slog.String("text", text)}
	switch {
	case record.Plugin == "log":
		// The line is from the log plugin, about one query: log its fields instead of their text.
		attrs = questionAttrs(line)
	case record.Plugin != "":
		attrs = append(attrs, slog.String("plugin", record.Plugin))
		if record.Plugin == "errors" && level > slog.LevelWarn {
			level = slog.LevelWarn // a query failed, but the server still serves
		}
	default:
		level, attrs[0].Value = caddyLevel(level, text)
	}
	ctx := context.Background()
	if record.Plugin == "log" {
		log.LogAttrs(ctx, level, "query", attrs...)
		return
	}
	log.LogAttrs(ctx, level, "coredns", attrs...)
}

// caddyLevel returns the level that caddy writes in front of its text, and the text without it. caddy's info lines become debug, because
// the agent logs reloads itself.
func caddyLevel(level slog.Level, text string) (slog.Level, slog.Value) {
	for _, l := range []struct {
		prefix string
		level  slog.Level
	}{
		{"[INFO] ", slog.LevelDebug}, {"[WARNING] ", slog.LevelWarn}, {"[ERROR] ", slog.LevelError}, {"[PANIC] ", slog.LevelError},
	} {
		if rest, ok := strings.CutPrefix(text, l.prefix); ok {
			return l.level, slog.StringValue(rest)
		}
	}
	return level, slog.StringValue(text)
}

func questionAttrs(line []byte) (attrs []slog.Attr) {
	var fields map[string]any
	_ = json.Unmarshal(line, &fields) // emit has read it already
	for _, f := range [][2]string{{"client", "client_ip"}, {"name", "qname"}, {"type", "qtype"}, {"protocol", "protocol"}, {"rcode", "rcode"},
		{"size", "response_size"}, {"seconds", "duration_seconds"}} {
		attrs = append(attrs, slog.Any(f[0], fields[f[1]]))
	}
	return attrs
}
