package dashboard

import (
	"maps"
	"slices"
)

// Patterns returns the methods and paths of all pages and posted forms that need a session.
func Patterns() []string { return slices.Sorted(maps.Keys(newRoutes())) }
