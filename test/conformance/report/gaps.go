package main

// gap is why methods have no case in which they work.
type gap struct {
	methods []string // as path.Match has them, in any SDK's spelling
	refused bool     // a case shows that the server refuses them by name
	why     string
}

// gaps are all there are. A method is in none or in one.
var gaps = []gap{
	{[]string{"Secret.create", "Secret.update", "Secret.getInfo", "Secret.list", "Secret.exists", "Secret.destroy", "SecretPaginator.*"}, true,
		"E2B's secrets do not say for which hosts they are, and this server sends a value to no other. [Secrets](../secrets.md) are set with their hosts, and named in `secrets` of a create."},
	{[]string{"Sandbox.getMcpUrl", "Sandbox.getMcpToken"}, true,
		"`Sandbox.create` refuses `mcp`: no template here has the gateway for MCP that they lead to."},

	{[]string{"Secret.fill", "Secret.iamToken"}, false, "They make a value for a request of `Sandbox.create`, which refuses it."},
	{[]string{"Template.from*", "Template.to*", "Template.copy*", "Template.remove", "Template.rename", "Template.make*", "Template.runCmd",
		"Template.set*", "Template.*Install", "Template.addMcpServer", "Template.gitClone", "Template.skipCache", "Template.beta*", "ReadyCmd.*"}, false,
		"They describe a template to the client; only a build reaches the server."},
	{[]string{"e2b template.publish", "e2b template.unpublish"}, false, "Templates belong to the API key that has built them; none is everybody's."},
	{[]string{"e2b template.init", "e2b template.migrate"}, false, "They write files for the client; only a build reaches the server."},
	{[]string{"e2b auth.*"}, false, "They log in to E2B's own service; here the command line is given its key in `E2B_API_KEY`."},
	{[]string{"ConnectionConfig.*", "VolumeConnectionConfig.*", "ApiClient.*"}, false, "Settings and connections within the client."},
	{[]string{"Context.*", "EntryInfo.*", "WriteInfo.*", "Execution.*", "ExecutionError.*", "Logs.*", "OutputMessage.*", "Result.*", "LogEntry*.*"}, false,
		"They convert an answer of the server within the client."},
}
