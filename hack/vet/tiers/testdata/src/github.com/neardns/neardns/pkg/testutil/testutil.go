package testutil

import "time"

func RequireRoot() {}

func NewNS() *int { return new(int) }

func Patience() time.Duration { return time.Minute }

const Silence = time.Second

func Eventually(f func() error) {
	for end := time.Now().Add(Patience()); time.Now().Before(end) && f() != nil; {
		time.Sleep(time.Millisecond)
	}
}
