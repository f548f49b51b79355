package zonewriter

import (
	"testing"
	"testing/synctest"

	"github.com/neardns/neardns/fleet/zones/zone"
)

// BIND with inline-signing accepts a message, and answers from the zone as it was until the new one is signed. That is not NotPermitted. A
// server that never has the change has left it out, whether its serial has changed or not.
func TestReadBack(t *testing.T) {
	for name, c := range map[string]struct {
		moved, whole int // the number of the read that finds another writer's change, and of the read that finds this one
		refused      bool
		looks        int
	}{
		"at once":                              {whole: 0, looks: 0},
		"signed at the third look":             {moved: 3, whole: 3, looks: 3},
		"signed long after":                    {moved: tries + 3, whole: tries + 3, looks: tries + 3},
		"another's change is signed before it": {moved: 1, whole: 5, looks: 5},
		"left out of a message":                {moved: 1, whole: 1000, refused: true, looks: tries},
		"left out whole":                       {moved: 1000, whole: 1000, refused: true, looks: 2 * tries},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, want := newPublisher(t, Options{}), publication("www", "192.0.2.1")
				p.state = parsed(t, 1)
				j := &job{Step: p.state.Plan(zone.Writer{Identity: me}, zone.Memory{}, want), host: &host{}, taken: true, serial: 1}
				looks := 0
				see := func() {
					switch {
					case looks >= c.whole:
						p.state = parsed(t, 3, Published(t, me, want)...)
					case looks >= c.moved:
						p.state = parsed(t, 2)
					}
				}
				see()
				if !p.readBack(t.Context(), []*job{j}, func() bool {
					looks++
					see()
					return true
				}) {
					t.Error("the zone is not known")
				}
				p.verify([]*job{j})
				if got := j.host.status.Conflict; (got != nil) != c.refused || looks != c.looks {
					t.Errorf("%d looks, want %d; %+v", looks, c.looks, got)
				}
			})
		})
	}
}
