// Uses the official clients of OpenAI and Anthropic, unchanged, through the gateway. It prints what they return as JSON.
import Anthropic from "@anthropic-ai/sdk"
import OpenAI from "openai"

const [url, key] = process.argv.slice(2)
const openai = new OpenAI({ apiKey: key, baseURL: `${url}/openai/v1`, maxRetries: 0 })
const anthropic = new Anthropic({ apiKey: key, baseURL: `${url}/anthropic`, maxRetries: 0 })
const messages = [{ role: "user", content: "hello" }]

// collect returns the events of a stream.
async function collect(stream) {
	const all = []
	for await (const event of await stream) all.push(event)
	return all
}

// refusal returns how a client understands an error.
async function refusal(call) {
	try {
		await call
		return "none"
	} catch (e) {
		return { name: e.constructor.name, status: e.status, code: e.code ?? null, type: e.type ?? null }
	}
}

const out = {}
const chat = await openai.chat.completions.create({ model: "small-2", messages, max_tokens: 500 })
out.chat = { text: chat.choices[0].message.content, usage: chat.usage.total_tokens }
const chunks = await collect(openai.chat.completions.create({ model: "small-2", messages, max_tokens: 500, stream: true }))
out.stream = { text: chunks.map(c => c.choices[0].delta.content ?? "").join(""), usage: chunks.filter(c => c.usage).length }
const asked = await collect(openai.chat.completions.create({ model: "small-2", messages, max_tokens: 500, stream: true, stream_options: { include_usage: true } }))
out.asked = { usage: asked.at(-1).usage.total_tokens }
const message = await anthropic.messages.create({ model: "claude-3", max_tokens: 500, messages })
out.message = { text: message.content[0].text, usage: message.usage.output_tokens }
const events = await collect(anthropic.messages.create({ model: "claude-3", max_tokens: 500, messages, stream: true }))
out.events = { types: events.map(e => e.type) }
out.refused = await refusal(openai.chat.completions.create({ model: "small-2", messages, max_tokens: 100000 }))
out.refusedMessage = await refusal(anthropic.messages.create({ model: "claude-3", max_tokens: 20000, messages, stream: true }))
out.unknownKey = await refusal(new OpenAI({ apiKey: "lk_user_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", baseURL: `${url}/openai/v1`, maxRetries: 0 }).models.list())
console.log(JSON.stringify(out))
