// Package partition divides the work of a group among its members by key: every
// partition, and with it every key, is at one member at a time.
package partition
