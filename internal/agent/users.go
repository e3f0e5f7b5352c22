package agent

import (
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// account is one line of the passwd file with the groups it belongs to.
type account struct {
	name     string
	uid, gid uint32
	home     string
	shell    string
	groups   []uint32 // gid first, then the supplementary ones
}

// accounts is one reading of the passwd and group files. They are read for
// every request that needs them, because commands in the sandbox edit them.
type accounts struct {
	byName     map[string]*account
	userNames  map[uint32]string
	groupNames map[uint32]string
	groupIDs   map[string]uint32
}

// readAccounts parses the files itself: with cgo off os/user would do the
// same, but keeps no supplementary groups and knows only one path. A missing
// file is an empty one, as in an image made from scratch.
func readAccounts(passwdFile, groupFile string) *accounts {
	as := &accounts{
		byName:     map[string]*account{},
		userNames:  map[uint32]string{},
		groupNames: map[uint32]string{},
		groupIDs:   map[string]uint32{},
	}
	eachRecord(passwdFile, 7, as.addUser)
	if as.byName["root"] == nil {
		as.addUser([]string{"root", "", "0", "0", "", "/root", "/bin/sh"})
	}
	eachRecord(groupFile, 4, as.addGroup)
	return as
}

func (as *accounts) addUser(f []string) {
	uid, err1 := strconv.ParseUint(f[2], 10, 32)
	gid, err2 := strconv.ParseUint(f[3], 10, 32)
	if err1 != nil || err2 != nil || f[0] == "" || as.byName[f[0]] != nil {
		return
	}
	a := &account{
		name: f[0], uid: uint32(uid), gid: uint32(gid),
		home: f[5], shell: f[6], groups: []uint32{uint32(gid)},
	}
	if a.home == "" {
		a.home = "/"
	}
	if a.shell == "" {
		a.shell = "/bin/sh"
	}
	as.byName[a.name] = a
	if _, taken := as.userNames[a.uid]; !taken {
		as.userNames[a.uid] = a.name
	}
}

func (as *accounts) addGroup(f []string) {
	id, err := strconv.ParseUint(f[2], 10, 32)
	if err != nil || f[0] == "" {
		return
	}
	gid := uint32(id)
	if _, taken := as.groupNames[gid]; !taken {
		as.groupNames[gid] = f[0]
	}
	if _, taken := as.groupIDs[f[0]]; !taken {
		as.groupIDs[f[0]] = gid
	}
	for member := range strings.SplitSeq(f[3], ",") {
		if a := as.byName[strings.TrimSpace(member)]; a != nil && gid != a.gid {
			a.groups = append(a.groups, gid)
		}
	}
}

// owner and group return names, or numbers where there is no name.
func (as *accounts) owner(uid uint32) string { return nameOr(as.userNames, uid) }
func (as *accounts) group(gid uint32) string { return nameOr(as.groupNames, gid) }

func nameOr(names map[uint32]string, id uint32) string {
	if name, ok := names[id]; ok {
		return name
	}
	return strconv.FormatUint(uint64(id), 10)
}

// maxAccountsFile bounds what a sandbox can make its agent parse per request.
const maxAccountsFile = 4 << 20

func eachRecord(file string, fields int, visit func([]string)) {
	data, err := readSmall(file, maxAccountsFile)
	if err != nil {
		return
	}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimRight(line, "\r\n")
		if f := strings.Split(line, ":"); len(f) >= fields && !strings.HasPrefix(line, "#") {
			visit(f)
		}
	}
}

// readSmall reads a regular file of at most so many bytes. It makes four system calls
// where an os.File, read to its end, takes a dozen: every request waits for them, and in a
// sandbox that was idle each is a switch between threads that sleep.
func readSmall(path string, most int) ([]byte, error) {
	fd, err := ignoringEINTR(func() (int, error) {
		return unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, unix.EINVAL
	}
	if st.Size > int64(most) {
		return nil, unix.EFBIG
	}
	data := make([]byte, 0, st.Size+1)
	for {
		n, err := ignoringEINTR(func() (int, error) { return unix.Read(fd, data[len(data):cap(data)]) })
		if err != nil {
			return nil, err
		}
		data = data[:len(data)+n]
		switch {
		case len(data) > most:
			return nil, unix.EFBIG
		case n == 0, len(data) == int(st.Size): // there was room for more
			return data, nil
		}
		data = slices.Grow(data, 512)
	}
}
