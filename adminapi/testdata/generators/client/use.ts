// A program over the generated types. It compiles if they allow what the API allows.
import type { components } from './types'
import * as client from './client'

type Schemas = components['schemas']

// A member with a default may be absent.
export const plan: Schemas['PlanCreate'] & client.PlanCreate = { name: 'Starter', max_requests: 1000, request_period: 'month' }
export const key: Schemas['KeyCreate'] & client.KeyCreate = { name: 'Production', user_id: 1 }
export const validation: Schemas['ValidateRequest'] & client.ValidateRequest = { api_key: 'lk_user_a', endpoint: '/', method: 'GET' }
export const regeneration: Schemas['KeyRegenerate'] & client.KeyRegenerate = {}
export const grant: Schemas['Adjustment'] & client.Adjustment = { delta: -500, reason: 'Goodwill' }

// Metadata has members of any name and type.
export const user: Schemas['UserCreate'] & client.UserCreate = { name: 'A', metadata: { tier: 'gold', seats: [1, 2], since: null } }
export const tier = (u: Schemas['User'] & client.User): unknown => u.metadata?.['tier']

// The members of a verdict follow from success and reason.
export async function remaining(): Promise<number | null> {
  const answer = await client.validate(validation)
  if (answer.status !== 200) throw new Error(answer.data.error)
  const verdict: Schemas['Verdict'] = answer.data
  return verdict.success || verdict.reason === 'quota' ? verdict.details.remaining : null
}
