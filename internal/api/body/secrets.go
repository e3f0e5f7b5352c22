package body

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/drowse-dev/drowse/internal/store"
)

// AsSecrets names secrets of the API key, perhaps with variables of their own.
var AsSecrets = Form{
	`an array of names of secrets, each alone or with a variable ({"name": "github", "env": "GITHUB_TOKEN"}), or an object with names by variable: {"GITHUB_TOKEN": "github"}`,
	Schema{"anyOf": []Schema{
		{"type": "array", "items": Schema{"anyOf": []Schema{{"type": "string"}, {
			"type": "object", "properties": Schema{"name": Schema{"type": "string"}, "env": Schema{"type": "string"}}, "required": []string{"name"},
		}}}},
		MapOf(Schema{"type": "string"}),
	}},
	readSecrets,
}

// secretBody is what an item of the array can say.
var secretBody = Vocabulary{
	{Name: "name", Required: true, Spelled: []Spelled{AsText.As("name")}},
	{Name: "env", Spelled: []Spelled{AsText.As("env")}},
}

func readSecret(path string, raw []byte) (store.SecretUse, error) {
	if kindOf(raw) != "an object" {
		name, err := readText(path, raw)
		if err != nil {
			return store.SecretUse{}, err
		}
		return store.SecretUse{Name: name.(string)}, nil
	}
	words, err := secretBody.Parse(raw, NullIsAbsent)
	if err != nil {
		return store.SecretUse{}, InField(path, err)
	}
	u := store.SecretUse{Name: words["name"].Value.(string)}
	u.Env, _ = words["env"].Value.(string)
	return u, nil
}

func readSecrets(path string, raw []byte) (any, error) {
	var uses []store.SecretUse
	switch kindOf(raw) {
	case "an array":
		var items []json.RawMessage
		if err := json.Unmarshal(raw, &items); err != nil {
			return nil, err
		}
		for _, item := range items {
			u, err := readSecret(path, item)
			if err != nil {
				return nil, err
			}
			uses = append(uses, u)
		}
	case "an object":
		texts, err := readTexts(path, raw)
		if err != nil {
			return nil, err
		}
		byEnv := texts.(map[string]string)
		for _, env := range slices.Sorted(maps.Keys(byEnv)) {
			uses = append(uses, store.SecretUse{Name: byEnv[env], Env: env})
		}
	default:
		return nil, wrongKind(path, "an array of strings, or an object", raw)
	}
	if len(uses) == 0 {
		return nil, nil
	}
	return uses, nil
}
