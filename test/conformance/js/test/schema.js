// The fields of the bodies that E2B's published schema knows, as the SDK's
// declarations have it. test/conformance/report holds a file to them by which the
// server's own tests find out what they have to send.

// Where sandboxes are made and changed; only these are read.
const ROUTE = /^\/(v\d+\/)?sandboxes(\/\{sandboxID\}\/(?!fork|snapshots)\w+)?$/

// requestFields returns lines like "POST /sandboxes network.allowOut": each field
// of each body, the fields of an entry of an array after "[]".
export function requestFields(declarations) {
  const text = declarations.replace(/\/\*[^]*?\*\/|\/\/[^\n]*/g, '')
  const read = (name) => new Types(text, text.indexOf(`interface ${name} {`) + `interface ${name} `.length).type()
  const paths = read('paths')
  const { schemas } = read('components').fields
  const lines = []
  for (const [path, methods] of Object.entries(paths.fields)) {
    if (!ROUTE.test(path)) continue
    for (const [method, operation] of Object.entries(methods.fields)) {
      const body = operation.fields?.requestBody?.fields?.content?.fields['application/json']
      if (!body) continue
      for (const field of fieldsOf(body, schemas.fields)) {
        lines.push(`${method.toUpperCase()} ${path.replace('{sandboxID}', 'ID')} ${field}`)
      }
    }
  }
  if (lines.length < 20) throw new Error(`only ${lines.length} fields of bodies were found in the SDK's declarations`)
  return [...new Set(lines)].sort()
}

// fieldsOf lists the fields of a type, nested ones by their path. What is under
// keys of the user's own is not looked into.
function fieldsOf(type, schemas) {
  if (type.schema) return fieldsOf(schemas[type.schema], schemas)
  if (type.item) return fieldsOf(type.item, schemas).map((field) => `[]${field}`)
  if (type.any) return type.any.flatMap((one) => fieldsOf(one, schemas))
  return Object.entries(type.fields ?? {}).flatMap(([name, inner]) => [
    name,
    ...fieldsOf(inner, schemas).map((field) => name + (field.startsWith('[]') ? field.replace(/^(\[\])+/, '[].') : `.${field}`)),
  ])
}

// Types reads the types of declarations that openapi-typescript writes.
class Types {
  constructor(text, at) {
    this.token = /\s*([A-Za-z_$][\w$]*|"[^"]*"|-?\d+(?:\.\d+)?|[{}[\]()<>|&:;,?])/y
    this.token.lastIndex = at
    this.text = text
    this.advance()
  }

  // advance returns the token that was next, without quotes.
  advance() {
    const was = this.next
    const { lastIndex } = this.token
    const found = this.token.exec(this.text)
    if (!found) throw new Error(`cannot read the SDK's declarations at ${JSON.stringify(this.text.slice(lastIndex, lastIndex + 60))}`)
    this.next = found[1]
    return was?.replaceAll('"', '')
  }

  skip(token) {
    if (this.next !== token) return false
    this.advance()
    return true
  }

  want(token) {
    if (!this.skip(token)) throw new Error(`"${token}" expected in the SDK's declarations, not "${this.next}"`)
  }

  type() {
    const any = [this.array()]
    while (this.skip('|') || this.skip('&')) any.push(this.array())
    return any.length > 1 ? { any } : any[0]
  }

  array() {
    let type = this.plain()
    while (this.skip('[')) {
      type = this.next === ']' ? { item: type } : this.indexed(type)
      this.want(']')
    }
    return type
  }

  // indexed reads components["schemas"]["Name"].
  indexed(type) {
    const path = [...(type.path ?? []), this.advance()]
    return path.length === 3 ? { schema: path[2] } : { path }
  }

  plain() {
    if (this.skip('(')) {
      const type = this.type()
      this.want(')')
      return type
    }
    if (this.skip('{')) return this.object()
    const name = this.advance()
    if (this.skip('<')) {
      do this.type()
      while (this.skip(','))
      this.want('>')
    }
    return name === 'components' || name === 'operations' ? { path: [name] } : {}
  }

  object() {
    const fields = {}
    while (!this.skip('}')) {
      if (this.skip('[')) {
        while (!this.skip(']')) this.advance()
        this.want(':')
        this.type()
      } else {
        const name = this.advance()
        this.skip('?')
        this.want(':')
        fields[name] = this.type()
      }
      this.skip(';') || this.skip(',')
    }
    return { fields }
  }
}
