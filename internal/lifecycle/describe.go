package lifecycle

// Rule is one cell of the table, for documentation: what an event does in a
// situation.
type Rule struct {
	Situation Situation
	Event     Kind
	Verdict   Verdict
	To        []Situation // where an event that applies may lead
	Note      string
}

// Rules returns the whole table: for every situation, in the order of
// Situations, a rule for every kind of event, requests before observations.
func Rules() []Rule {
	rules := make([]Rule, 0, len(table)*len(allKinds))
	for _, at := range Situations() {
		for _, k := range allKinds {
			r := table[at][k]
			rules = append(rules, Rule{
				Situation: at, Event: k, Verdict: r.verdict, To: append([]Situation(nil), r.to...), Note: r.note,
			})
		}
	}
	return rules
}
