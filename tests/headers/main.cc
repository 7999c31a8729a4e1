// The other sources of this program are the test: each includes one header, and nothing before it.
int main() { return 0; }
