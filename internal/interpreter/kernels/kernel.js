// The JavaScript kernel: runs cells of code that come over descriptor 3, one
// JSON object a line, and tells what they do over descriptor 4 in the same way.
// What they print goes to where their child processes print.
//
// Cells are evaluated as the console of developer tools does it (the
// inspector's REPL mode): await is allowed, and names can be declared again.
'use strict'

const crypto = require('node:crypto')
const fs = require('node:fs')
const inspector = require('node:inspector')
const nodeModule = require('node:module')
const net = require('node:net')
const path = require('node:path')
const readline = require('node:readline')
const { Writable } = require('node:stream')
const { pathToFileURL } = require('node:url')
const util = require('node:util')
const vm = require('node:vm')

const MAX_MESSAGE = 12 << 20 // bytes

function send(message) {
  let data = Buffer.from(JSON.stringify(message) + '\n')
  if (data.length > MAX_MESSAGE) {
    throw new RangeError(`a result of ${data.length} bytes is too large: the limit is ${MAX_MESSAGE}`)
  }
  while (data.length > 0) data = data.subarray(fs.writeSync(4, data))
  // Descriptor 5 says that a result has been taken: only then what is printed
  // next comes after it.
  if (message.type === 'result') fs.readSync(5, Buffer.alloc(1))
}

// An Output replaces process.stdout or stderr, which are not touched: Node's own
// would make the pipe non-blocking for child processes too, and lose its way
// when it is interrupted.
class Output extends Writable {
  constructor(fd) {
    super()
    this.fd = fd
  }

  write(chunk, encoding, callback) {
    if (typeof encoding === 'function') [callback, encoding] = [encoding, undefined]
    let data = typeof chunk === 'string' ? Buffer.from(chunk, encoding) : chunk
    while (data.length > 0) data = data.subarray(fs.writeSync(this.fd, data))
    if (callback) process.nextTick(callback)
    return true
  }
}

for (const [name, fd] of [['stdout', 1], ['stderr', 2]]) {
  Object.defineProperty(process, name, { value: new Output(fd), enumerable: true, configurable: true })
}

// --- random numbers

// The memory of a sandbox may be copied, and the generators of V8 and OpenSSL with it,
// which cannot be reseeded. These functions draw from the operating system's instead,
// which never repeats. Node's own are asked first: they check the arguments.

const { readSync } = fs // not one that a cell puts there
const urandom = fs.openSync('/dev/urandom')

// refill fills a buffer, or some of its elements.
function refill(buffer, offset = 0, size) {
  const unit = buffer.BYTES_PER_ELEMENT ?? 1
  const bytes = new Uint8Array(buffer.buffer ?? buffer, buffer.byteOffset, buffer.byteLength)
  let part = bytes.subarray(offset * unit, size === undefined ? undefined : (offset + size) * unit)
  while (part.length > 0) part = part.subarray(readSync(urandom, part))
  return buffer
}

function replace(object, functions) {
  for (const [name, value] of Object.entries(functions)) {
    Object.defineProperty(object, name, { ...Object.getOwnPropertyDescriptor(object, name), value })
  }
}

const pool = new Uint32Array(8192) // a read for each would take too long
let pooled = 0

function word() {
  if (pooled === 0) pooled = refill(pool).length
  return pool[--pooled]
}

function reseed() {
  pooled = 0
}

replace(Math, {
  random() {
    return ((word() >>> 5) * 2 ** 26 + (word() >>> 6)) / 2 ** 53
  },
})

const { randomBytes, randomFill, randomFillSync, randomInt, randomUUID } = crypto
const WebCrypto = Object.getPrototypeOf(crypto.webcrypto)
const { getRandomValues } = WebCrypto

// instead has a callback called with what draw returns.
function instead(callback, draw) {
  return typeof callback === 'function' ? (err, value) => (err ? callback(err) : callback(null, draw(value))) : callback
}

replace(crypto, {
  randomBytes(size, callback) {
    return callback === undefined ? refill(randomBytes(size)) : randomBytes(size, instead(callback, (bytes) => refill(bytes)))
  },
  randomFillSync(buffer, ...range) {
    return refill(randomFillSync(buffer, ...range), ...range)
  },
  randomFill(buffer, ...range) {
    const callback = range.pop()
    randomFill(buffer, ...range, instead(callback, () => refill(buffer, ...range)))
  },
  randomInt(...args) {
    const callback = typeof args.at(-1) === 'function' ? args.pop() : undefined
    const draw = () => (args[1] === undefined ? between(0, args[0]) : between(...args))
    if (callback) return randomInt(...args, instead(callback, draw))
    randomInt(...args)
    return draw()
  },
  randomUUID(options) {
    randomUUID(options)
    const words = options?.disableEntropyCache ? refill(new Uint32Array(4)) : Uint32Array.of(word(), word(), word(), word())
    const bytes = Buffer.from(words.buffer)
    bytes[6] = (bytes[6] & 0x0f) | 0x40
    bytes[8] = (bytes[8] & 0x3f) | 0x80
    const hex = bytes.toString('hex')
    return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20)}`
  },
})
replace(WebCrypto, {
  randomUUID: crypto.randomUUID,
  getRandomValues(array) {
    return refill(getRandomValues.call(this, array))
  },
})
nodeModule.syncBuiltinESMExports()

// between draws a whole number that is less than most; all are as likely.
function between(least, most) {
  const range = most - least
  for (;;) {
    const n = (word() & 0xffff) * 2 ** 32 + word()
    if (n < 2 ** 48 - (2 ** 48 % range)) return least + (n % range)
  }
}

// --- what a value looks like

const METHODS = {
  _toHtml: 'text/html',
  _toMarkdown: 'text/markdown',
  _toSvg: 'image/svg+xml',
  _toPng: 'image/png',
  _toJpeg: 'image/jpeg',
}

function bundle(value) {
  const data = {}
  if (value !== null && typeof value === 'object') {
    for (const [method, mime] of Object.entries(METHODS)) {
      if (typeof value[method] === 'function') data[mime] = value[method]()
    }
    if (typeof value._toMime === 'function') Object.assign(data, value._toMime())
    const own = value[Symbol.for('Jupyter.display')]
    if (typeof own === 'function') Object.assign(data, own.call(value))
  }
  data['text/plain'] ??= util.inspect(value)
  for (const [mime, shown] of Object.entries(data)) {
    if (ArrayBuffer.isView(shown)) data[mime] = Buffer.from(shown).toString('base64')
  }
  return data
}

function display(value, { raw = false } = {}) {
  send({ type: 'result', main: false, data: raw ? value : bundle(value) })
}

// --- what the console's mode cannot do: import

// import is resolved from the working directory, where a script would be.
function importModule(name, options) {
  const from = pathToFileURL(path.join(process.cwd(), 'cell.js')).href
  if (/^\.{0,2}\//.test(name)) name = new URL(name, from).href
  else if (!nodeModule.isBuiltin(name) && !/^[a-z]+:/.test(name)) {
    try {
      name = pathToFileURL(nodeModule.createRequire(from).resolve(name)).href
    } catch (err) {
      if (err.code !== 'ERR_PACKAGE_PATH_NOT_EXPORTED') throw err
      // Node's own way finds packages for import alone, from where this file is.
    }
  }
  return import(name, options)
}

// Node's own parser; a Node without it runs the code as it is.
function parser() {
  try {
    return [
      require('internal/deps/acorn/acorn/dist/acorn'),
      require('internal/deps/acorn/acorn-walk/dist/walk'),
    ]
  } catch {
    return []
  }
}

const IMPORT = '__drowse_import'

function declaration(node) {
  const load = `await ${IMPORT}(${JSON.stringify(node.source.value)})`
  const named = []
  const lines = []
  for (const s of node.specifiers) {
    if (s.type === 'ImportNamespaceSpecifier') lines.push(`const ${s.local.name} = ${load}`)
    else named.push(`${s.type === 'ImportDefaultSpecifier' ? 'default' : (s.imported.name ?? JSON.stringify(s.imported.value))}: ${s.local.name}`)
  }
  if (named.length > 0) lines.push(`const { ${named.join(', ')} } = ${load}`)
  return (lines.length > 0 ? lines.join('; ') : load) + ';'
}

// withoutImports makes calls of what imports.
function withoutImports(code) {
  if (!/\bimport\b/.test(code)) return code
  const [acorn, walk] = parser()
  if (!acorn) return code
  let tree
  try {
    tree = acorn.parse(code, { ecmaVersion: 'latest', sourceType: 'module', allowAwaitOutsideFunction: true })
  } catch {
    return code // the engine words the error
  }
  const edits = []
  walk.simple(tree, {
    ImportDeclaration: (node) => edits.push([node.start, node.end, declaration(node)]),
    ImportExpression: (node) => edits.push([node.start, node.start + 'import'.length, IMPORT]),
  })
  for (const [start, end, text] of edits.sort((a, b) => b[0] - a[0])) {
    code = code.slice(0, start) + text + code.slice(end)
  }
  return code
}

// --- running

const session = new inspector.Session()
session.connect()

let taken // where a value goes that the inspector has
const TAKE = '__drowse_take'

function hide(name, value) {
  Object.defineProperty(globalThis, name, { value, enumerable: false, writable: true, configurable: true })
}

hide(TAKE, (value) => { taken = value })
hide(IMPORT, importModule)
hide('display', display)
hide('require', nodeModule.createRequire(path.join(process.cwd(), 'cell.js')))

// take returns the value of a reply of the inspector.
function take(remote) {
  if (remote.objectId === undefined) {
    return remote.unserializableValue === undefined ? remote.value : vm.runInThisContext(remote.unserializableValue)
  }
  session.post('Runtime.callFunctionOn', {
    objectId: remote.objectId,
    functionDeclaration: `function (value) { ${TAKE}(value) }`,
    arguments: [{ objectId: remote.objectId }],
  })
  session.post('Runtime.releaseObject', { objectId: remote.objectId })
  const value = taken
  taken = undefined
  return value
}

class KeyboardInterrupt extends Error {
  name = 'KeyboardInterrupt'
}

class Thrown {
  constructor(value, place) {
    this.value = value
    this.place = place
  }
}

let interrupt = () => {}
process.on('SIGINT', () => interrupt())

function evaluate(code) {
  return new Promise((resolve, reject) => {
    interrupt = () => reject(new Thrown(new KeyboardInterrupt('the execution was interrupted')))
    const start = () => session.post('Runtime.evaluate', { expression: code, replMode: true }, (err, reply) => {
      if (err) return reject(new Thrown(err))
      const { result, exceptionDetails: details } = reply
      // Not resolve(value): a promise given to it could not be interrupted.
      if (!details) return Promise.resolve(take(result)).then(resolve, (thrown) => reject(new Thrown(thrown)))
      const place = `    at <anonymous>:${details.lineNumber + 1}:${details.columnNumber + 1}`
      reject(new Thrown(take(details.exception ?? result), place))
    })
    hide('__drowse_start', start)
    try {
      // Only so can a signal break a loop that never yields.
      vm.runInThisContext('__drowse_start()', { breakOnSigint: true })
    } catch {
      interrupt()
    }
  })
}

async function runCell(code) {
  const value = await evaluate(withoutImports(plainScript(code)))
  if (value !== undefined) send({ type: 'result', main: true, data: bundle(value) })
}

// plainScript takes the types out of TypeScript, where Node can.
function plainScript(code) {
  if (!nodeModule.stripTypeScriptTypes) return code
  try {
    return nodeModule.stripTypeScriptTypes(code, { mode: 'transform' })
  } catch {
    return code // JavaScript that is no TypeScript, or no code at all
  }
}

const OURS = /node:inspector|node:vm|evalmachine|node:internal/

function report({ value, place }) {
  if (!(value instanceof Error) && !util.types.isNativeError(value)) {
    return send({ type: 'error', name: 'Error', value: util.inspect(value), traceback: `Uncaught ${util.inspect(value)}` })
  }
  const lines = String(value.stack ?? value).split('\n')
  const ours = lines.findIndex((line) => OURS.test(line) || line.includes(__filename))
  const own = ours < 0 ? lines : lines.slice(0, ours)
  if (value instanceof SyntaxError && place && own.length < 2) own.push(place)
  send({ type: 'error', name: String(value.name), value: String(value.message), traceback: own.join('\n') })
}

function setEnvironment(variables) {
  for (const [name, value] of Object.entries(variables)) {
    if (value === null) delete process.env[name]
    else process.env[name] = value
  }
}

// What fails in the background is told, and ends nothing. What fails between cells,
// where nobody listens, is told with the next one.
const { setImmediate } = globalThis // not one that a cell puts there
const MAX_FAILURES = 20
let running = false
let failures = []

function fail(err) {
  const text = `Uncaught ${util.inspect(err)}\n`
  if (running) process.stderr.write(text)
  else if (failures.length < MAX_FAILURES) failures.push(text)
}

for (const event of ['uncaughtException', 'unhandledRejection']) process.on(event, fail)

async function serve({ code, env, restore, reseed: copied }) {
  if (copied) reseed()
  setEnvironment(env)
  running = true
  for (const text of failures.splice(0)) process.stderr.write(text)
  try {
    await runCell(code)
  } catch (err) {
    report(err instanceof Thrown ? err : new Thrown(err))
  }
  interrupt = () => {}
  await new Promise(setImmediate) // a rejection that nobody handles is known only then
  setEnvironment(restore)
  running = false
  send({ type: 'done' })
}

process.execArgv = []
process.argv.length = 1

const requests = readline.createInterface({ input: new net.Socket({ fd: 3, readable: true, writable: false }) })
requests.on('line', (line) => serve(JSON.parse(line)))
requests.on('close', () => process.exit())
send({ type: 'ready', version: process.version, typescript: Boolean(nodeModule.stripTypeScriptTypes) })
