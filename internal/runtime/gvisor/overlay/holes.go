package main

// findHoles tells where a file that has memory has pages.
const findHoles = `package pgalloc

import (
	"math"

	"golang.org/x/sys/unix"
)

// dataFinder tells which parts of a file may be other than zeros, without reading them.
// It is asked for ascending offsets, while nobody writes to the file.
type dataFinder struct {
	fd         int
	start, end uint64 // what is next, or at the offset that was asked for last
}

// at reports whether there may be data at an offset: pages that were swapped out are
// data too. Where the kernel does not say, there may be.
func (d *dataFinder) at(off uint64) bool {
	if off >= d.end {
		d.find(off)
	}
	return off >= d.start
}

func (d *dataFinder) find(off uint64) {
	start, err := unix.Seek(d.fd, int64(off), unix.SEEK_DATA)
	if err == unix.ENXIO { // none up to the end
		d.start, d.end = math.MaxUint64, math.MaxUint64
		return
	}
	if err == nil {
		var end int64
		if end, err = unix.Seek(d.fd, start, unix.SEEK_HOLE); err == nil {
			d.start, d.end = uint64(start), uint64(end)
			return
		}
	}
	d.start, d.end = off, math.MaxUint64
}
`
