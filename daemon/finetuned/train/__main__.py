from finetuned.train.main import main

main()
