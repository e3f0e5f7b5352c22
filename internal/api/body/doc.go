// Package body reads the JSON bodies of requests, for every dialect.
//
// What a body can say is a [Vocabulary]: options, each with all its spellings,
// the form of its values and what it does. [Options] has everything that can be
// said of a sandbox. Parsers, documents and tests of the dialects are made from
// it, so a new option is written down once.
//
// Nothing that a body says is ignored. A field, nested ones too, is an option's
// spelling or is refused by name, with the name that was probably meant. Two
// spellings of one option must agree.
package body
