// What the installed SDK offers, by its own declarations, and which of it each
// case calls. Both are written to DROWSE_CONFORMANCE_RESULTS, a file, as lines
// of JSON; test/conformance/report makes the table of them.

import { AsyncLocalStorage } from 'node:async_hooks'
import { appendFileSync, readFileSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import * as interpreter from '@e2b/code-interpreter'
import * as e2b from 'e2b'
import { requestFields } from './schema.js'

const results = process.env.DROWSE_CONFORMANCE_RESULTS

// running is the case that a call belongs to, and whether an SDK method makes
// that call for itself.
const running = new AsyncLocalStorage()

// record runs a case and writes down how it went and what it called.
export async function record(name, body) {
  const calls = new Set()
  let ok = false
  try {
    const value = await running.run({ calls, inside: false }, body)
    ok = true
    return value
  } finally {
    report({ area: basename(process.argv[1], '.test.js'), case: name, ok, calls: [...calls].sort() })
  }
}

// offer writes down the SDK's versions and methods, and the fields that its
// schema has.
export function offer() {
  const methods = [...surface].flatMap(([name, names]) => names.map((method) => `${name}.${method}`))
  const packages = { e2b: version('e2b'), '@e2b/code-interpreter': version('@e2b/code-interpreter') }
  report({ packages, methods, fields: requestFields(readFileSync(join(dist('e2b'), 'index.d.ts'), 'utf8')) })
}

function report(line) {
  if (results) appendFileSync(results, `${JSON.stringify(line)}\n`)
}

function dist(name) {
  return dirname(fileURLToPath(import.meta.resolve(name)))
}

function version(name) {
  return JSON.parse(readFileSync(join(dist(name), '..', 'package.json'))).version
}

// declarations returns the classes of a package, each with the public methods
// that are its own and the class that it extends.
function declarations(name) {
  const classes = new Map()
  let current
  for (const line of readFileSync(join(dist(name), 'index.d.ts'), 'utf8').split('\n')) {
    const head = /^declare (?:abstract )?class (\w+)(?:<[^{]*?>)?(?: extends ([\w$]+))?/.exec(line)
    if (head) classes.set(head[1], (current = { base: head[2], methods: new Set() }))
    const member = current && /^( +)(?:(?:static |abstract )?(\w+)(?:<[^(]*>)?\()?/.exec(line)
    if (member) {
      current.indent ??= member[1]
      if (member[1] === current.indent && member[2] && member[2] !== 'constructor') current.methods.add(member[2])
    }
    if (line.startsWith('}')) current = undefined
  }
  return classes
}

// publicMethods maps the names of a package's classes to their methods, those of
// the base classes included. Base classes and errors are not named themselves.
function publicMethods(name) {
  const classes = declarations(name)
  const bases = new Set([...classes.values()].map((c) => c.base))
  const found = new Map()
  for (const [className, own] of classes) {
    if (bases.has(className) || className.endsWith('Error')) continue
    const methods = new Set()
    for (let c = own; c; c = classes.get(c.base)) for (const method of c.methods) methods.add(method)
    if (methods.size > 0) found.set(className.replace(/Base$/, ''), [...methods])
  }
  return found
}

// The class Sandbox of the code interpreter is e2b's with more methods.
const surface = publicMethods('e2b')
for (const [name, methods] of publicMethods('@e2b/code-interpreter')) {
  surface.set(name === 'Sandbox' ? 'CodeInterpreter' : name, methods)
}

// watch has every call of these methods noted down for the case that makes it.
function watch(holder, name) {
  const methods = surface.get(name)
  for (; methods && holder && holder !== Function.prototype && holder !== Object.prototype; holder = Object.getPrototypeOf(holder)) {
    for (const method of methods) {
      const own = Object.getOwnPropertyDescriptor(holder, method)
      if (typeof own?.value !== 'function' || watched.has(own.value)) continue
      const value = noting(own.value, `${name}.${method}`)
      watched.add(value)
      Object.defineProperty(holder, method, { ...own, value })
    }
  }
}

const watched = new WeakSet()

function noting(fn, label) {
  return function (...args) {
    const run = running.getStore()
    if (!run || run.inside) return met(fn.apply(this, args))
    run.calls.add(label)
    return running.run({ ...run, inside: true }, () => met(fn.apply(this, args)))
  }
}

// met watches the classes of what an SDK method returns: most are not exported.
function met(value) {
  if (value instanceof Promise) return value.then(met)
  if (value instanceof Object) {
    for (const object of [value, ...Object.values(value)]) {
      if (object instanceof Object) watch(Object.getPrototypeOf(object), object.constructor?.name)
    }
  }
  return value
}

watch(interpreter.Sandbox, 'CodeInterpreter')
watch(interpreter.Sandbox.prototype, 'CodeInterpreter')
for (const name of surface.keys()) {
  if (e2b[name]) watch(e2b[name], name)
  if (e2b[name]?.prototype) watch(e2b[name].prototype, name)
}
watch(e2b.TemplateBase, 'Template')
watch(e2b.TemplateBase.prototype, 'Template')
