package ui

import (
	"context"
	"net/http"
	"strings"
	"time"
)

// signInData is what the page to sign in shows.
type signInData struct {
	Token   string
	Next    string
	Problem string
}

func signInPage(v *visit) error {
	next := ownPath(v.r.URL.Query().Get("next"), Path+"/")
	if v.replaces != nil {
		v.redirect(next)
		return nil
	}
	v.render(http.StatusOK, "signin", screen{Title: "Sign in", Data: signInData{Next: next}})
	return nil
}

// signIn takes an API key. It is in a form's body, so it is in no address and no log.
func signIn(v *visit) error {
	if err := v.parseForm(); err != nil {
		return refusal{http.StatusBadRequest, "the form could not be read", "go back and send it again"}
	}
	next := ownPath(v.r.PostForm.Get("next"), Path+"/")
	h, err := v.s.Keys.Check(strings.TrimSpace(v.r.PostForm.Get("key")))
	if err != nil {
		v.render(http.StatusUnauthorized, "signin", screen{Title: "Sign in", Data: signInData{Token: v.token(), Next: next, Problem: err.Error()}})
		return nil
	}
	v.open(h)
	v.redirect(next)
	return nil
}

func signOut(v *visit) error {
	v.s.sessions.remove(v.session)
	v.setCookie("", -1)
	v.redirect(Path + "/sign-in")
	return nil
}

// makeLink answers the command line: who has an API key gets a link that lets a
// browser in, in the name of that key.
func makeLink(v *visit) error {
	h, err := v.s.Keys.Check(v.r.Header.Get("X-API-Key"))
	if err != nil {
		return refusal{http.StatusUnauthorized, err.Error(), "send an API key of this server in the X-API-Key header"}
	}
	now := time.Now()
	until := now.Add(linkTime)
	bound, unbind := v.s.Keys.Bind(v.s.base, h.ID)
	context.AfterFunc(bound, unbind)
	time.AfterFunc(linkTime, unbind)
	text, ok := v.s.links.add(link{holder: h, until: until, key: bound}, now)
	if !ok {
		unbind()
		return refusal{http.StatusTooManyRequests, "too many links to sign in have been made", "use one, or wait a minute"}
	}
	// The secret is in the fragment, which no browser sends and no proxy logs.
	v.answer(http.StatusCreated, map[string]any{"relativeURL": Path + "/link#" + text, "expiresAt": until.UTC().Truncate(time.Second)})
	return nil
}

// linkPage takes the secret out of the address's fragment and asks for a click:
// programs that look at links in messages must not use them up.
func linkPage(v *visit) error {
	v.render(http.StatusOK, "link", screen{Title: "Sign in", Data: signInData{Token: v.token()}})
	return nil
}

func useLink(v *visit) error {
	if err := v.parseForm(); err != nil {
		return refusal{http.StatusBadRequest, "the form could not be read", "open the link again"}
	}
	k, ok := v.s.links.take(strings.TrimSpace(v.r.PostForm.Get("secret")), time.Now())
	if !ok || !v.holds(k.holder) {
		return refusal{http.StatusUnauthorized, "this link was used already, or has expired", "make another with: drowse ui"}
	}
	v.open(k.holder)
	v.redirect(Path + "/")
	return nil
}

// holds reports whether an API key is good now. What is bound to one that was revoked
// ends a moment later.
func (v *visit) holds(h Holder) bool {
	bound, unbind := v.s.Keys.Bind(v.s.base, h.ID)
	defer unbind()
	return bound.Err() == nil
}
