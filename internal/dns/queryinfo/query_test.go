package queryinfo

import (
	"context"
	"testing"
)

// TestFound: the last level counts, and a nil Query has none.
func TestFound(t *testing.T) {
	q := new(Query)
	ctx := context.WithValue(context.Background(), Key{}, q)
	if From(context.Background()) != nil || From(ctx) != q || q.Level() != Miss || q.Level().FromCache() {
		t.Error("a new question")
	}
	From(ctx).Found(Stale)
	From(ctx).Found(Hit)
	if q.Level() != Hit || !q.Level().FromCache() || !Stale.FromCache() {
		t.Errorf("level %d", q.Level())
	}
	From(context.Background()).Found(Stale)
	if From(context.Background()).Level() != Miss || q.Level() != Hit {
		t.Errorf("another question made the client's level %d", q.Level())
	}
}
