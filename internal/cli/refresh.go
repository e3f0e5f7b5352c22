package cli

import (
	"errors"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/drowse-dev/drowse/internal/lifecycle"
)

// refreshFlag is a flag that is true, where nothing else is said, false or the word
// requests.
type refreshFlag struct{ r *lifecycle.Refresh }

func refreshVar(f *pflag.FlagSet, r *lifecycle.Refresh, name, usage string) {
	f.Var(refreshFlag{r}, name, usage)
	f.Lookup(name).NoOptDefVal = "true"
}

// Type makes help and completion take it for a flag that needs no value.
func (refreshFlag) Type() string { return "bool" }

func (v refreshFlag) String() string {
	if v.r == nil || *v.r == lifecycle.NoRefresh {
		return "false"
	}
	if *v.r == lifecycle.RefreshOnWork {
		return "true"
	}
	return string(*v.r)
}

func (v refreshFlag) Set(text string) error {
	on, err := strconv.ParseBool(text)
	switch {
	case text == string(lifecycle.RefreshOnRequests):
		*v.r = lifecycle.RefreshOnRequests
	case err != nil:
		return errors.New("want true, false or requests")
	case on:
		*v.r = lifecycle.RefreshOnWork
	default:
		*v.r = lifecycle.NoRefresh
	}
	return nil
}

// options returns what the API's client calls it: whether anything refreshes, and
// whether only requests do.
func (v refreshFlag) options() (onActivity *bool, onRequests bool) {
	return new(*v.r != lifecycle.NoRefresh), *v.r == lifecycle.RefreshOnRequests
}
