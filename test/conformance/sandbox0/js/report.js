// Writes how the cases went to DROWSE_CONFORMANCE_RESULTS, a file, as lines of
// JSON; test/conformance/report makes the table of them.

import { appendFileSync, readFileSync } from 'node:fs'
import { test } from 'node:test'

const results = process.env.DROWSE_CONFORMANCE_RESULTS

function report(line) {
  if (results) appendFileSync(results, `${JSON.stringify(line)}\n`)
}

// offer writes down which versions are tried.
export function offer(...packages) {
  const { dependencies } = JSON.parse(readFileSync(new URL('./package.json', import.meta.url)))
  report({ registry: 'npm', packages: Object.fromEntries(packages.map((name) => [name, dependencies[name]])) })
}

// cases returns what declares the cases of an area.
export function cases(area) {
  return (name, body) =>
    test(name, async (t) => {
      let ok = false
      try {
        await body(t)
        ok = true
      } finally {
        report({ area, case: name, ok })
      }
    })
}
