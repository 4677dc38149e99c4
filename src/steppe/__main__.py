from steppe.cli import main

main()
