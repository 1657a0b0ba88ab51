package outboxtest

var drainCases []Case
