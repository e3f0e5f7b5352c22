// Command guest is what the benchmarks put to sleep: an HTTP server that holds
// a given amount of memory that does not compress and answers with a number
// that counts on. Whether memory survived shows in what it answers.
//
//	guest MEBIBYTES
package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"sync/atomic"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: guest MEMORY-MEBIBYTES FILE-MEBIBYTES")
	}
	memory, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	file, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	debug.SetGCPercent(-1) // the ballast is all there is
	ballast := fill(memory << 20)
	if file > 0 {
		held, err := hold(file)
		if err != nil {
			return err
		}
		defer held.Close()
	}
	id := rand.Uint64()
	var count atomic.Int64
	http.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		n := count.Add(1)
		sample := touch(ballast, r.FormValue("touch"), false) + touch(ballast, r.FormValue("dirty"), true)
		if len(ballast) > 0 { // another page each time
			sample += ballast[int(n)*40_961%len(ballast)]
		}
		fmt.Fprintf(w, "%x %d %d\n", id, n, sample)
	})
	return http.ListenAndServe(":8080", nil)
}

// touch reads so many percent of the pages of b, in runs of 16 that are spread evenly,
// and returns what that adds up to. With dirty it changes them.
func touch(b []byte, percent string, dirty bool) (sum byte) {
	n, err := strconv.Atoi(percent)
	if err != nil || n <= 0 {
		return 0
	}
	const page, run = 4096, 16 * 4096
	for at := 0; at+run <= len(b); at += run * 100 / n {
		for i := at; i < at+run; i += page {
			sum += b[i]
			if dirty {
				b[i]++
			}
		}
	}
	return sum
}

// hold writes a file below the working directory and leaves it open.
func hold(mebibytes int) (*os.File, error) {
	f, err := os.OpenFile("held", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	block := fill(1 << 20)
	for range mebibytes {
		if _, err := f.Write(block); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
	return f, nil
}

// fill returns random bytes.
func fill(size int) []byte {
	b := make([]byte, size)
	src := rand.NewPCG(rand.Uint64(), rand.Uint64())
	for i := 0; i+8 <= size; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], src.Uint64())
	}
	return b
}
