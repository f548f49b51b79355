package main

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"strings"

	"github.com/miekg/dns"
)

// note counts a message, and draws what becomes of it.
func (r *relay) note(raw []byte) (f faults, before, after bool) {
	var m dns.Msg
	isUpdate := m.Unpack(raw) == nil && m.Opcode == dns.OpcodeUpdate
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !isUpdate:
		r.traffic.Reads++
	case isHeartbeat(&m, r.zone):
		r.traffic.Heartbeats++
	default:
		r.traffic.Updates++
	}
	draw := rand.Float64()
	before = isUpdate && draw < r.faults.LoseBefore
	after = isUpdate && !before && draw < r.faults.LoseBefore+r.faults.LoseAfter
	return r.faults, before, after
}

// noteAnswer counts UPDATEs that the server was too busy for. RFC 1035 section 4.1.1 has opcode and code in bytes 2 and 3.
func (r *relay) noteAnswer(raw []byte) {
	if len(raw) < 4 || int(raw[2]>>3&15) != dns.OpcodeUpdate || int(raw[3]&15) != dns.RcodeServerFailure {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.traffic.Busy++
}

// isHeartbeat recognizes an UPDATE that changes nothing but C._neardns of its zone. RFC 2136 has the changes in the authority section.
func isHeartbeat(m *dns.Msg, zone string) bool {
	for _, rr := range m.Ns {
		cluster, rest, _ := strings.Cut(strings.ToLower(rr.Header().Name), ".")
		if rest != "_neardns."+zone || strings.HasPrefix(cluster, "_") {
			return false
		}
	}
	return len(m.Ns) > 0
}

func readFrame(c io.Reader) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(c, length[:]); err != nil {
		return nil, err
	}
	raw := make([]byte, binary.BigEndian.Uint16(length[:]))
	_, err := io.ReadFull(c, raw)
	return raw, err
}

func frame(raw []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(raw))), raw...)
}
