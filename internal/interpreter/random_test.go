package interpreter

import (
	"fmt"
	"strings"
	"testing"
)

// TestReseed has a kernel draw the numbers of its seed, and others once its sandbox
// has turned out to be a copy.
func TestReseed(t *testing.T) {
	withLibraries(t, func(t *testing.T, s *interpreterServer) {
		for _, c := range []struct{ language, seed, draw string }{
			{"python", "import random; random.seed(7)", "random.random()"},
			{"python", "import numpy; numpy.random.seed(7)", "numpy.random.random()"},
			{"python", "import tempfile; tempfile._name_sequence = type('Same', (), {'__next__': lambda self: 'same'})()", "tempfile.mktemp()"},
			{"bash", "RANDOM=7", "echo $RANDOM"},
		} {
			run := func(code string) string {
				o := s.run(c.language, code)
				equal(t, code+": errors", o.errors, []object(nil))
				return fmt.Sprint(o.text(), strings.Join(o.stdout, ""))
			}
			run(c.seed)
			first := run(c.draw)
			run(c.seed)
			equal(t, c.draw+", in the same sandbox", run(c.draw), first)
			run(c.seed)
			s.host.copies.Add(1)
			if got := run(c.draw); got == first {
				t.Errorf("%s, in a copy: again %s", c.draw, got)
			}
			run(c.seed)
			equal(t, c.draw+", seeded in the copy", run(c.draw), first)
		}
		s.host.copies.Add(1)
		o := s.run("python", "import sys; sys.modules['random'] = None; import numpy.random; numpy.random.seed = None")
		equal(t, "errors of a cell that takes the generators away", o.errors, []object(nil))
		s.host.copies.Add(1)
		equal(t, "the cell after it", s.run("python", "1").text(), any("1"))
	})
}

// TestNodeRandomness has the functions that the JavaScript kernel replaces behave as
// Node's do.
func TestNodeRandomness(t *testing.T) {
	s := newServer(t)
	for _, c := range []struct{ name, code, want string }{
		{"numbers", "const xs = Array.from({ length: 1e5 }, () => Math.random()); [Math.min(...xs) >= 0, Math.max(...xs) < 1, new Set(xs).size, Math.abs(xs.reduce((a, b) => a + b) / 1e5 - 0.5) < 0.01].join()", "true,true,100000,true"},
		{"a number's digits", "Math.max(...xs.map((x) => String(x).length)) > 16", "true"},
		{"names", "[Math.random.name, Math.random.length, Object.keys(Math).length].join()", "random,0,0"},
		{"bytes", "const cr = require('crypto'); cr.randomBytes(20).length", "20"},
		{"no zeros", "cr.randomBytes(64).some((b) => b !== 0)", "true"},
		{"bytes, later", "(await require('util').promisify(cr.randomBytes)(20)).length", "20"},
		{"bytes, bad size", "try { cr.randomBytes(-1) } catch (err) { err.code }", "ERR_OUT_OF_RANGE"},
		{"bytes, bad callback", "try { cr.randomBytes(1, 2) } catch (err) { err.code }", "ERR_INVALID_ARG_TYPE"},
		{"part of a buffer", "const b = cr.randomFillSync(new Uint32Array(8), 2, 4); [b.length, b[1], b[6], b.slice(2, 6).some((n) => n > 0)].join()", "8,0,0,true"},
		{"another view", "const v = new Uint8Array(16); cr.randomFillSync(new DataView(v.buffer, 4, 8)); [v[3], v[12], v.some((n) => n > 0)].join()", "0,0,true"},
		{"a buffer, later", "const l = new Uint8Array(8); const r = await new Promise((ok, no) => cr.randomFill(l, 4, (err, b) => err ? no(err) : ok(b))); [r === l, l[3], l.some((n) => n > 0)].join()", "true,0,true"},
		{"integers", "const ns = Array.from({ length: 1000 }, () => cr.randomInt(-3, 3)); [Math.min(...ns), Math.max(...ns)].join()", "-3,2"},
		{"integers from zero", "[...new Set(Array.from({ length: 1000 }, () => cr.randomInt(3)))].sort().join()", "0,1,2"},
		{"an integer, later", "[await require('util').promisify(cr.randomInt)(5, 6), await new Promise((ok) => cr.randomInt(1, (err, n) => ok(n)))].join()", "5,0"},
		{"integers, bad bounds", "try { cr.randomInt(3, 3) } catch (err) { err.code }", "ERR_OUT_OF_RANGE"},
		{"UUIDs", "[cr.randomUUID(), cr.randomUUID({ disableEntropyCache: true })].every((id) => /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/.test(id))", "true"},
		{"values", "const a = new BigInt64Array(4); [cr.webcrypto.getRandomValues(a) === a, a.some((n) => n !== 0n)].join()", "true,true"},
		{"values, too many", "try { cr.webcrypto.getRandomValues(new Uint8Array(65537)) } catch (err) { err.name }", "QuotaExceededError"},
		{"imported", "import { randomUUID } from 'node:crypto'\nrandomUUID === cr.randomUUID", "true"},
	} {
		o := s.run("js", c.code)
		equal(t, c.name+": errors", o.errors, []object(nil))
		equal(t, c.name, o.text(), any(c.want))
	}
}
