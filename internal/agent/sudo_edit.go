package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// editors are those that sudo -e looks for if no variable names one.
var editors = []string{"editor", "nano", "vi"}

// edit has the caller's own editor change copies of files, as the caller, and
// writes back what it has changed, as target.
func (s *sudo) edit(o *sudoOptions, target *account) error {
	editor, err := s.editor()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("/var/tmp", "sudoedit-")
	if err != nil {
		return err
	}
	if err := os.Chown(dir, int(s.uid), int(s.gid)); err != nil {
		return err
	}
	var drafts []draft
	for i, path := range o.commandLine {
		d := draft{path: path, copy: filepath.Join(dir, fmt.Sprintf("%d-%s", i, filepath.Base(path)))}
		if err := as(target, func() (err error) { d.text, d.isNew, err = readOriginal(path); return err }); err != nil {
			return errors.Join(err, os.RemoveAll(dir))
		}
		if err := errors.Join(os.WriteFile(d.copy, d.text, 0o600), os.Chown(d.copy, int(s.uid), int(s.gid))); err != nil {
			return errors.Join(err, os.RemoveAll(dir))
		}
		drafts = append(drafts, d)
		editor = append(editor, d.copy)
	}
	if err := s.runEditor(editor); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	for _, d := range drafts {
		if err := d.writeBack(target); err != nil {
			return fmt.Errorf("%w; what was edited is in %s", err, d.copy)
		}
	}
	return os.RemoveAll(dir)
}

// draft is a copy of a file that is edited.
type draft struct {
	path, copy string
	text       []byte // before it was edited
	isNew      bool
}

func readOriginal(path string) (text []byte, isNew bool, err error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, true, nil
	}
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: not a regular file", path)
	}
	if err == nil {
		text, err = os.ReadFile(path)
	}
	return text, false, err
}

func (d draft) writeBack(target *account) error {
	info, err := os.Lstat(d.copy)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: not a regular file", d.copy)
	}
	if err != nil {
		return err
	}
	text, err := os.ReadFile(d.copy)
	if err != nil || bytes.Equal(text, d.text) && (!d.isNew || len(text) == 0) {
		return err
	}
	return as(target, func() error { return os.WriteFile(d.path, text, 0o644) })
}

// editor returns the program that the caller edits with.
func (s *sudo) editor() ([]string, error) {
	for _, name := range []string{"SUDO_EDITOR", "VISUAL", "EDITOR"} {
		if words := strings.Fields(lookEnv(s.environ, name)); len(words) > 0 {
			path, err := lookSudo(words[0])
			return append([]string{path}, words[1:]...), err
		}
	}
	for _, name := range editors {
		if path, err := lookSudo(name); err == nil {
			return []string{path}, nil
		}
	}
	return nil, errors.New("no editor found: set EDITOR to one")
}

func (s *sudo) runEditor(argv []string) error {
	p, err := os.StartProcess(argv[0], argv, &os.ProcAttr{
		Env: s.environ, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Sys: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: s.uid, Gid: s.gid, NoSetGroups: true}},
	})
	if err != nil {
		return err
	}
	state, err := p.Wait()
	if err == nil && !state.Success() {
		err = fmt.Errorf("%s: %s; nothing was changed", argv[0], state)
	}
	return err
}

// as calls f with the rights of a user.
func as(user *account, f func() error) error {
	if user.uid == 0 {
		return f()
	}
	before, err := syscall.Getgroups()
	if err != nil {
		return err
	}
	groups := make([]int, len(user.groups))
	for i, g := range user.groups {
		groups[i] = int(g)
	}
	become := func(uid, gid int, groups []int) error {
		return errors.Join(syscall.Setgroups(groups), syscall.Setresgid(-1, gid, -1), syscall.Setresuid(-1, uid, -1))
	}
	if err := become(int(user.uid), int(user.gid), groups); err != nil {
		return err
	}
	err = f()
	// Back: first the right to do so.
	return errors.Join(err, syscall.Setresuid(-1, 0, -1), become(0, 0, slices.Clone(before)))
}
