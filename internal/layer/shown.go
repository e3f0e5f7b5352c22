package layer

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/drowse-dev/drowse/internal/tree"
)

// shown counts what a merger would put into a new layer from the sources below live.
type shown struct {
	Usage
	live    int // the number of the source that a sandbox is changing
	counted map[[2]uint64]bool
}

// Shown returns what the layers of a stack would still take if they were merged with
// the top over them: what one of them or the top hides is not counted, and neither is
// what the top has itself. The top may be one that a sandbox is changing; "" is none.
func Shown(ctx context.Context, s *Store, stack []string, top string) (u Usage, err error) {
	for range usageTries {
		if u, err = countShown(ctx, s, stack, top); !errors.Is(err, tree.ErrMoved) && !errors.Is(err, unix.ENOENT) {
			break
		}
	}
	if err != nil {
		return Usage{}, fmt.Errorf("count what is shown of the layers below %q: %w", top, err)
	}
	return u, nil
}

func countShown(ctx context.Context, s *Store, stack []string, top string) (Usage, error) {
	m := merger{ctx: ctx, new: &handle{}, shown: &shown{live: len(stack), counted: map[[2]uint64]bool{}}}
	defer m.close()
	layers := stack
	if top != "" {
		layers = append(layers[:len(layers):len(layers)], top)
	}
	for _, id := range layers {
		h, err := openTop(s.LayerDir(id))
		if err != nil {
			return Usage{}, err
		}
		m.sources = append(m.sources, source{top: h})
	}
	trees, err := m.trees()
	if err != nil {
		return Usage{}, err
	}
	for _, name := range trees {
		if err := m.mergeTree(name); err != nil {
			return Usage{}, err
		}
	}
	return m.shown.Usage, nil
}

// directory counts a directory by the topmost layer that has it.
func (s *shown) directory(name string, p part) error {
	var st unix.Stat_t
	if err := unix.Fstat(p.fd(), &st); err != nil {
		return err
	}
	s.add(name, p.source, &st)
	return nil
}

// file counts what is no directory.
func (s *shown) file(name string, e entry) error {
	var st unix.Stat_t
	err := unix.Fstatat(e.in.fd(), e.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil {
		s.add(name, e.in.source, &st)
	}
	return unlessVanished(err)
}

func (s *shown) add(name string, source int, st *unix.Stat_t) {
	if source >= s.live {
		return
	}
	one := Usage{Files: 1, NameBytes: int64(len(name))}
	file := [2]uint64{st.Dev, st.Ino}
	if !s.counted[file] {
		one.Bytes = st.Blocks * 512
	}
	if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		s.counted[file] = true
	}
	s.Usage = s.Plus(one)
}

// unlessVanished is the error of looking at a name, or nil if a sandbox has removed
// what had it.
func unlessVanished(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	return err
}
