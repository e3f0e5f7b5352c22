// A program against the generated types. It is type-checked, not run.
import createClient from 'openapi-fetch'
import type { components, paths } from './generated/drowse'

const client = createClient<paths>({ baseUrl: 'http://127.0.0.1:3000', headers: { 'X-API-Key': 'key' } })

type Create = NonNullable<paths['/v1/sandboxes']['post']['requestBody']>['content']['application/json']
// @ts-expect-error only the canonical name is described
export const misspelt: Create = { timeout_seconds: 600 }

export async function use(): Promise<components['schemas']['Sandbox'][]> {
  const { data: sandbox, error } = await client.POST('/v1/sandboxes', {
    body: { timeoutSeconds: 600, onTimeout: 'pause', autoResume: true, metadata: { team: 'red' } },
  })
  if (error) throw new Error(`${error.error.code}: ${error.error.message}`)
  const path = { id: sandbox.id }
  await client.POST('/v1/sandboxes/{id}/pause', { params: { path }, body: { mode: 'memory' } })
  await client.PATCH('/v1/sandboxes/{id}', { params: { path }, body: { metadata: { team: 'blue' } } })
  // @ts-expect-error there is no such action
  await client.POST('/v1/sandboxes', { body: { onTimeout: 'stop' } })
  const { data: list } = await client.GET('/v1/sandboxes')
  return list?.sandboxes ?? []
}
