// Package nearest finds the known word that a misspelt word probably means.
package nearest

// Hint returns a question for the end of an error about an unknown word, ": did you mean account?": the known word with the smallest Levenshtein
// distance to word. It returns "" if that distance is more than 2 and more than a third of the length of word, or if word is longer than 64 bytes.
func Hint(word string, known []string) (hint string) {
	if len(word) > 64 {
		return ""
	}
	best := max(2, len(word)/3) + 1
	for _, k := range known {
		if d := distance(word, k); d < best {
			best, hint = d, ": did you mean "+k+"?"
		}
	}
	return hint
}

// distance returns the edit distance of two words, in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
