package kv

// weight is what a part of the tree of nodes holds: records, and bytes of data in them.
type weight struct{ records, bytes int64 }

func (w *weight) add(v weight) {
	w.records += v.records
	w.bytes += v.bytes
}

// dataBytes returns the length of the data in a record of a node.
func dataBytes(rec string) int64 {
	var n node
	decodeNode(recValue(rec), &n)
	return int64(len(n.data))
}

func weighRecords(recs []string) weight {
	w := weight{records: int64(len(recs))}
	for _, rec := range recs {
		w.bytes += dataBytes(rec)
	}
	return w
}

// weigh returns the weight of everything below n, from what was found out before as far as nothing has changed. n is
// part of TableNode. Nodes that are shared are weighed by several goroutines at once, with the same result; one that an
// edit owns only by the edit itself.
func (n *bnode) weigh() weight {
	if w := n.weight.Load(); w != nil {
		return *w
	}
	var w weight
	if n.kids == nil {
		w = weighRecords(n.recs)
	}
	for _, kid := range n.kids {
		w.add(kid.weigh())
	}
	n.weight.Store(&w)
	return w
}

// weighRange returns the weight of the records below n whose key is from or greater and less than to; an empty bound is
// none.
func (n *bnode) weighRange(from, to string) weight {
	if from == "" && to == "" {
		return n.weigh()
	}
	if n.kids == nil {
		i, j := 0, len(n.recs)
		if from != "" {
			i, _ = searchRecs(n.recs, from)
		}
		if to != "" {
			j, _ = searchRecs(n.recs, to)
		}
		return weighRecords(n.recs[i:j])
	}
	i, j := 0, len(n.recs) // the kids that hold the ends
	if from != "" {
		i = childFor(n.recs, from)
	}
	if to != "" {
		j = childFor(n.recs, to)
	}
	if i == j {
		return n.kids[i].weighRange(from, to)
	}
	sum := n.kids[i].weighRange(from, "")
	sum.add(n.kids[j].weighRange("", to))
	for _, kid := range n.kids[i+1 : j] {
		sum.add(kid.weigh())
	}
	return sum
}

// changing forgets the weight of a node that is about to be changed.
func (n *bnode) changing() {
	if n.weight.Load() != nil { // a look is cheaper than a store
		n.weight.Store(nil)
	}
}
