package tree

// NamesWithin is Names with another bound.
var NamesWithin = namesAfter
