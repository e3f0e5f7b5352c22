package main

import (
	"math/rand/v2"
	"slices"
)

// pair is one run of drowse and the run of the raw tool right after it.
type pair struct{ ours, raw float64 }

// pairs are the samples of one comparison, in the order they were taken.
type pairs []pair

func (p pairs) ours() []float64 { return column(p, func(v pair) float64 { return v.ours }) }
func (p pairs) raw() []float64  { return column(p, func(v pair) float64 { return v.raw }) }

func column(p pairs, of func(pair) float64) []float64 {
	out := make([]float64, len(p))
	for i, v := range p {
		out[i] = of(v)
	}
	return out
}

// quantile returns the q-th quantile of values, between neighbours by
// proportion.
func quantile(values []float64, q float64) float64 {
	s := slices.Sorted(slices.Values(values))
	if len(s) == 0 {
		return 0
	}
	at := q * float64(len(s)-1)
	i := int(at)
	if i+1 == len(s) {
		return s[i]
	}
	return s[i] + (at-float64(i))*(s[i+1]-s[i])
}

func median(values []float64) float64 { return quantile(values, 0.5) }

// interval is an estimate with its 95 % bootstrap interval.
type interval struct{ value, low, high float64 }

const resamples = 5000

// ratio returns median(ours) / median(raw). Pairs are resampled whole, which
// keeps what both sides of a pair owe to the moment they ran in.
func (p pairs) ratio() interval {
	of := func(p pairs) float64 { return median(p.ours()) / median(p.raw()) }
	rng := rand.New(rand.NewPCG(1, 2)) // the same data give the same interval
	estimates := make([]float64, resamples)
	sample := make(pairs, len(p))
	for i := range estimates {
		for j := range sample {
			sample[j] = p[rng.IntN(len(p))]
		}
		estimates[i] = of(sample)
	}
	return interval{value: of(p), low: quantile(estimates, 0.025), high: quantile(estimates, 0.975)}
}
