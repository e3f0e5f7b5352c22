// With E2B_SANDBOX_URL set, nothing in a signed URL names the sandbox: the
// server finds it by the signature.

import assert from 'node:assert/strict'
import { describe } from 'node:test'
import { check, scratch, shared } from './support.js'

const form = (data) => {
  const body = new FormData()
  body.append('file', data)
  return { method: 'POST', body }
}

describe('signed urls', () => {
  const box = shared()
  shared() // a second sandbox, which must not be mistaken for the first

  check('download', async () => {
    const path = scratch(' é+%.txt')
    await box.sandbox.files.write(path, 'through a signed url')
    const res = await fetch(await box.sandbox.downloadUrl(path))
    assert.equal(res.status, 200)
    assert.equal(await res.text(), 'through a signed url')
  })

  check('download as root, relative path', async () => {
    await box.sandbox.files.write('signed.txt', 'of root', { user: 'root' })
    const res = await fetch(await box.sandbox.downloadUrl('signed.txt', { user: 'root' }))
    assert.equal(res.status, 200)
    assert.equal(await res.text(), 'of root')
  })

  check('download of a missing file is a 404', async () => {
    const res = await fetch(await box.sandbox.downloadUrl(scratch()))
    assert.equal(res.status, 404)
  })

  check('download before the expiration', async () => {
    const path = scratch()
    await box.sandbox.files.write(path, 'in time')
    const res = await fetch(await box.sandbox.downloadUrl(path, { useSignatureExpiration: 60 }))
    assert.equal(res.status, 200)
    assert.equal(await res.text(), 'in time')
  })

  check('download after the expiration', async () => {
    const path = scratch()
    await box.sandbox.files.write(path, 'too late')
    const res = await fetch(await box.sandbox.downloadUrl(path, { useSignatureExpiration: -10 }))
    assert.equal(res.status, 401)
    assert.deepEqual(await res.json(), { code: 401, message: 'signature is already expired' })
  })

  check('upload of a file', async () => {
    const path = scratch('/nested/upload.txt')
    const res = await fetch(await box.sandbox.uploadUrl(path), form(new Blob(['uploaded'])))
    assert.equal(res.status, 200)
    assert.deepEqual(await res.json(), [{ name: 'upload.txt', path, type: 'file' }])
    assert.equal(await box.sandbox.files.read(path), 'uploaded')
  })

  check('upload of a form field without a file name', async () => {
    const path = scratch()
    const res = await fetch(await box.sandbox.uploadUrl(path), form('a bare field'))
    assert.equal(res.status, 200)
    assert.equal(await box.sandbox.files.read(path), 'a bare field')
  })

  check('a signature is good for one path and one direction only', async () => {
    const path = scratch()
    await box.sandbox.files.write(path, 'secret')
    const url = new URL(await box.sandbox.downloadUrl(path))
    assert.equal((await fetch(url, form('overwritten'))).ok, false)
    url.searchParams.set('path', '/etc/passwd')
    assert.equal((await fetch(url)).ok, false)
    url.searchParams.delete('signature')
    assert.equal((await fetch(url)).ok, false)
    assert.equal(await box.sandbox.files.read(path), 'secret')
  })
})
