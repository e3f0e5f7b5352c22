// Package source makes errors in every way that the tree does.
package source

import "github.com/drowse-dev/drowse/internal/errdef"

const codeConstant = "by_constant"

type failure struct{ ErrorCode string }

func literal() error { return errdef.New(errdef.NotFound, "by_literal", "") }

func constant() error { return errdef.New(errdef.Exists, codeConstant, "").WithRemedy("") }

func made(format, code string) *errdef.Error { return errdef.New(errdef.Conflict, code, "%s", format) }

func madeAgain(code string) error { return made("", code) }

func makers() []error { return []error{made("", "by_maker"), madeAgain("by_second_maker")} }

func closure() error {
	invalid := func(code string) *errdef.Error { return errdef.New(errdef.Invalid, code, "") }
	return invalid("by_closure").WithRemedy("")
}

func variable(e *errdef.Error) error {
	code := "by_variable"
	if e != nil {
		code = e.Code
	}
	return &errdef.Error{Class: errdef.Internal, Code: code}
}

func composite() error { return &errdef.Error{Class: errdef.Internal, Code: "by_struct"} }

func dialect(code string) failure { return failure{ErrorCode: code} }

func dialects() []failure { return []failure{dialect("by_dialect"), dialect("")} }

func passedOn(e *errdef.Error) error { return errdef.New(e.Class, e.Code, "") }
