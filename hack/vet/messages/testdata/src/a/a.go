package a

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
)

const prefix = "The "

func f(log *slog.Logger, flags *flag.FlagSet, text string) {
	_ = errors.New("kube-dns was not asked")           // want `Message.words: "asked"`
	_ = errors.New("the question section has 2 names") // the section's own name
	_ = errors.New(text + "Is told nothing here.")     // not constant
	_ = fmt.Errorf("Cannot read %s", text)             // want `Message.capital`
	_ = fmt.Errorf("Corefile: %s", text)
	_ = fmt.Errorf("CoreDNS exits: %s", text)
	_ = fmt.Errorf("DNS is down: %s", text)
	_ = fmt.Sprintf("The pods ask %s.", text)
	log.Info(prefix + "agent ends.") // want `Message.capital` `Message.end`
	log.WarnContext(context.Background(), "pod bypassed", "told", "by whom.")
	slog.Error("given back")                                 // want `Message.words: "given back"`
	log.Log(context.Background(), slog.LevelInfo, "Ready")   // want `Message.capital`
	_ = flags.String("told", "beside.", "what nobody reads") // want `Message.words: "nobody"`
	flags.BoolVar(nil, "x", false, "serve pods.\n")          // want `Message.end`
}
