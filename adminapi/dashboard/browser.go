package dashboard

import "strings"

// The words of a User-Agent that name a browser or a system. The first word in a list that the User-Agent has counts: most browsers also name others.
var (
	browserWords = [][2]string{{"Edg", "Edge"}, {"OPR/", "Opera"}, {"Firefox/", "Firefox"}, {"FxiOS/", "Firefox"}, {"CriOS/", "Chrome"}, {"Chrome/", "Chrome"}, {"Safari/", "Safari"}}
	systemWords  = [][2]string{{"Windows", "Windows"}, {"Android", "Android"}, {"iPhone", "iPhone"}, {"iPad", "iPad"}, {"Mac OS X", "macOS"}, {"CrOS", "ChromeOS"}, {"Linux", "Linux"}}
)

// browserOf names the browser and the system of a User-Agent, as in "Firefox on Linux".
func browserOf(userAgent string) string {
	browser, system := wordOf(userAgent, browserWords), wordOf(userAgent, systemWords)
	switch {
	case browser == "" && userAgent == "":
		return "unknown"
	case browser == "":
		name, _, _ := strings.Cut(userAgent, " ")
		return name
	case system == "":
		return browser
	}
	return browser + " on " + system
}

func wordOf(text string, words [][2]string) string {
	for _, w := range words {
		if strings.Contains(text, w[0]) {
			return w[1]
		}
	}
	return ""
}
