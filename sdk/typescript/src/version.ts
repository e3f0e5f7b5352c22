// Generated from sdk/VERSION. Do not edit.

export const version = "0.1.0";
