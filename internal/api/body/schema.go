package body

// Schema is a JSON Schema of the dialect of OpenAPI 3.1.
type Schema map[string]any

// Components is where a document has the schemas that others refer to.
const Components = "#/components/schemas/"

// MapOf is an object whose fields have any names.
func MapOf(values Schema) Schema {
	return Schema{"type": "object", "additionalProperties": values}
}

// OneOf is a text out of a few.
func OneOf[T ~string](values ...T) Schema { return Schema{"type": "string", "enum": values} }
