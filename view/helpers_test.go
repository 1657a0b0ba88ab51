package view_test

import (
	"context"
	"errors"
	"io"
	"net/http"

	"promethean"
	"promethean/event"
	"promethean/group"
	"promethean/view"
)

func nothing(context.Context, event.Event, *view.Tx) error { return nil }

func seqPlace(seq uint64) promethean.Place {
	if seq == 0 {
		return promethean.Place{From: group.Earliest}
	}
	return promethean.Place{From: group.FromSeq, Seq: seq}
}

func drain(res *http.Response) {
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
}

func putTwo(_ context.Context, e event.Event, tx *view.Tx) error {
	return errors.Join(tx.Put("processes", e.Key+"1", struct{}{}), tx.Put("processes", e.Key+"2", struct{}{}))
}
